"""What the tolerance rule remembers: Python's numbers where the host makes them, tensors on a device."""

import math
from typing import Any

import torch
from torch import Tensor

from tiebreak import tolerance
from tiebreak.tolerance import Memory
from tiebreak.torch.context import copied, store


class LawMemory:
    """The memory between steps; empty where there is no law.

    Parameters
    ----------
    first : Memory or ()
        Before the first step.
    """

    def __init__(self, first: Any) -> None:
        self.values: dict[str, Any] = (
            first._asdict() if isinstance(first, Memory) else {}
        )
        self._whole: Tensor | None = (
            None  # where a kernel keeps them: the values are views of it
        )

    def now(self, host: bool = False) -> Any:
        """As the decision takes it; in Python's numbers if it is the host that decides."""
        if not self.values:
            return ()
        if host and isinstance(
            next(iter(self.values.values())), Tensor
        ):  # a device had them before: waits once
            self.values = {name: float(value) for name, value in self.values.items()}
        return Memory(**self.values)

    def on(self, device: torch.device) -> Tensor:
        """All of it in one tensor on a device, for a kernel that reads and writes it there."""
        first = next(iter(self.values.values()))
        if (
            self._whole is not None
            and isinstance(first, Tensor)
            and first._base is self._whole
        ):
            return self._whole
        place = torch.empty((), dtype=torch.float64, device=device)
        whole = torch.stack([_like(value, place) for value in self.values.values()])
        self.values = dict(zip(self.values, whole.unbind(), strict=True))
        self._whole = whole
        return whole

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
            store(
                self.values,
                name,
                torch.where(fine, value, _like(self.values[name], value)),
            )
        return False

    @property
    def returns(self) -> int:
        """How many times the model was set to its twin; waits for a device."""
        return int(tolerance.return_count(Memory(**self.values))) if self.values else 0

    def needs_return(self) -> bool:
        """Whether the model is to be set to its twin; waits for a device."""
        return bool(
            torch.as_tensor(tolerance.needs_return(Memory(**self.values))).all()
        )

    def after_return(self) -> None:
        """Go on from the twin, to which the model was set."""
        self.load_state_dict(tolerance.after_return(Memory(**self.values))._asdict())

    def state_dict(self) -> dict[str, Any]:
        """A copy of its own."""
        return copied(self.values)

    def check(self, state: dict[str, Any]) -> None:
        """Raise if this state cannot be taken up."""
        if bool(state) != bool(self.values):
            saved, mine = (
                "with" if names else "without" for names in (state, self.values)
            )
            raise ValueError(
                f"the state was saved {saved} tolerance=, and this optimizer was made {mine} it"
            )
        if set(state) != set(self.values):
            unlike = sorted(set(state) ^ set(self.values))
            raise ValueError(
                f"what the tolerance rule of the state remembers differs from this version's in {', '.join(unlike)}"
            )
        for name, value in state.items():
            number = (
                value.numel() == 1
                if isinstance(value, Tensor)
                else type(value) in (int, float)
            )
            if not number or not math.isfinite(value):
                raise ValueError(
                    f"in this state law.{name} is {value!r}; it must be a finite number"[
                        :300
                    ]
                )
        if state:
            tolerance.check(Memory(**state))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave, in place: a captured step goes on with it."""
        for name, value in state.items():
            before = self.values[name]
            if isinstance(before, Tensor):
                value = _like(value, before)
            store(self.values, name, value)


def _like(value: Any, like: Tensor) -> Tensor:
    """The value on the device of `like`, in its dtype; a number is filled in there: sending it would wait."""
    return value.to(like) if isinstance(value, Tensor) else torch.full_like(like, value)
