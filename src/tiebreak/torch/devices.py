"""What a device does later than the host: copies of numbers, CUDA graphs, and states that stay in their memory."""

from typing import Any, NoReturn

import torch
from torch import Tensor


def on_host(tensor: Tensor) -> bool:
    """Whether the host can read a tensor without waiting for a device."""
    return tensor.device.type == "cpu"


def capturing(device: torch.device) -> bool:
    """Whether launches on this device go into a CUDA graph now."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def cannot_repeat(what: str) -> NoReturn:
    """Raise because a captured step repeats its numbers, and `what` changes them."""
    raise RuntimeError(f"a captured step repeats its numbers, and {what}")


class HostCopy:
    """A copy of a tensor on the host, which arrives when the device gets there.

    Parameters
    ----------
    tensor : tensor
        On any device. The copy has the values at this point of the device's work.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.device = tensor.device
        self._event: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            self._values = tensor.to("cpu", non_blocking=True)  # into pinned memory
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types here
            self._event.record(torch.cuda.current_stream(tensor.device))
        elif on_host(tensor):
            self._values = tensor.detach().clone()
        else:
            self._values = tensor.cpu()

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`read` would return without waiting."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]  # likewise

    def read(self) -> list[float]:
        """Return the numbers in one row; wait until they have arrived."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        numbers: list[float] = self._values.reshape(-1).tolist()
        return numbers


def store(state: dict[str, Any], name: str, value: object) -> None:
    """Put a value into a state; a tensor in place, because a captured step reads its memory."""
    before = state.get(name)
    if (
        isinstance(before, Tensor)
        and isinstance(value, Tensor)
        and (before.device, before.dtype) == (value.device, value.dtype)
    ):
        before.copy_(value)
    else:
        state[name] = copy_value(value)


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state with tensors of its own."""
    return {name: copy_value(value) for name, value in state.items()}


def copy_value(value: object) -> Any:
    """Return a clone of a tensor, and anything else as it is."""
    if isinstance(value, Tensor):
        return value.clone()
    return value
