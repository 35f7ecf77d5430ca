"""What the tolerance rule remembers: Python's numbers where the host makes them, tensors on a device."""

import math
from typing import Any

import torch
from torch import Tensor

from tiebreak.tolerance import Constants, Memory, beyond, rejoined
from tiebreak.torch.context import copied, store


class LawMemory:
    """The memory between steps; empty where there is no law.

    Parameters
    ----------
    first : Memory or ()
        Before the first step.
    """

    def __init__(self, first: Any) -> None:
        self.values: dict[str, Any] = first._asdict() if isinstance(first, Memory) else {}
        self._whole: Tensor | None = None  # where a kernel keeps them: the values are views of it

    def now(self, host: bool = False) -> Any:
        """As the decision takes it; in Python's numbers if it is the host that decides."""
        if not self.values:
            return ()
        if host and isinstance(self.values["steps"], Tensor):  # a device had it before: this waits, once
            self.values = {name: float(value) for name, value in self.values.items()}
        return Memory(**self.values)

    def on(self, device: torch.device) -> Tensor:
        """All of it in one tensor on a device, for a kernel that reads and writes it there."""
        if self._whole is None or self.values["steps"]._base is not self._whole:
            given = self.values.values()
            # Filled in there: sending a number from here would wait.
            full = [
                v if isinstance(v, Tensor) else torch.full((), v, dtype=torch.float64, device=device) for v in given
            ]
            self._whole = torch.stack([v.to(device, torch.float64) for v in full])
            self.values = dict(zip(self.values, self._whole.unbind(), strict=True))
        return self._whole

    def __getstate__(self) -> dict[str, Any]:
        return {"values": copied(self.values), "_whole": None}

    def keep(self, new: Any, bad: Tensor | None) -> bool:
        """Take up what the decision returned, unless the step is `bad`; says whether the host knows the numbers.

        A loss that is not finite must not stay, whatever is done about such steps.
        """
        values = new._asdict() if self.values else {}
        if not any(isinstance(value, Tensor) for value in values.values()):
            if all(map(math.isfinite, values.values())):
                self.values.update(values)
            return True
        fine = torch.isfinite(torch.stack(list(values.values()))).all()
        fine = fine if bad is None else fine & ~bad
        for name, value in values.items():
            before = self.values[name]
            old = before.to(value) if isinstance(before, Tensor) else torch.full_like(value, before)
            store(self.values, name, torch.where(fine, value, old))
        return False

    def beside(self, like: Tensor, name: str) -> Tensor:
        """A copy of one of them where `like` is, as one number of its kind; nothing waits."""
        value = self.values[name]
        if isinstance(value, Tensor):
            return value.to(like.device, like.dtype, copy=True)
        return torch.full((), value, dtype=like.dtype, device=like.device)  # sending it from here would wait

    def beyond(self) -> bool:
        """Whether steps on the lower loss alone do not repair what the upper one did; waits for a device."""
        return bool(torch.as_tensor(beyond(Memory(**self.values))).all())

    def rejoin(self, constants: Constants | None) -> None:
        """The model has been set to its twin."""
        self.load_state_dict(rejoined(Memory(**self.values), constants)._asdict())

    def state_dict(self) -> dict[str, Any]:
        """A copy of its own."""
        return copied(self.values)

    def check(self, state: dict[str, Any]) -> None:
        """Raise if this state cannot be taken up."""
        if bool(state) != bool(self.values):
            saved, mine = ("with" if names else "without" for names in (state, self.values))
            raise ValueError(f"the state was saved {saved} tolerance=, and this optimizer was made {mine} it")
        if set(state) != set(self.values):
            unlike = sorted(set(state) ^ set(self.values))
            raise ValueError(
                f"what the tolerance rule of the state remembers differs from this version's in {', '.join(unlike)}"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave, in place: a captured step goes on with it."""
        for name, value in state.items():
            before = self.values[name]
            if isinstance(before, Tensor):
                value = torch.full_like(before, value) if not isinstance(value, Tensor) else value.to(before)
            store(self.values, name, value)
