"""Numbers on their way from a device to the host: asked for now, read later, and nobody waits in between."""

import torch
from torch import Tensor


def on_host(tensor: Tensor) -> bool:
    """Whether reading it waits for nobody."""
    return tensor.device.type == "cpu"


class Later:
    """A copy of a tensor on the host; there when the device has come to it.

    Parameters
    ----------
    tensor : tensor
        On any device; what it holds at this point of the device's work is what will be read.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.device = tensor.device
        self._event: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            self._host = tensor.to("cpu", non_blocking=True)  # into pinned memory
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types here
            self._event.record(torch.cuda.current_stream(tensor.device))
        else:
            self._host = (
                tensor.detach().clone() if tensor.device.type == "cpu" else tensor.cpu()
            )

    @property
    def there(self) -> bool:
        """Whether reading it would not wait."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]  # likewise

    def read(self) -> list[float]:
        """The numbers, in one row; waits until they are there."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        numbers: list[float] = self._host.reshape(-1).tolist()
        return numbers
