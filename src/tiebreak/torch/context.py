"""What may go on around a step: a CUDA graph being captured, random numbers, states that are saved."""

import random
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor


def capturing(device: torch.device) -> bool:
    """Whether what is launched now goes into a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def cannot_repeat(what: str) -> NoReturn:
    """Say that a step changes from one to the next, where it is to be captured once and repeated."""
    raise RuntimeError(f"a captured step repeats its numbers, and {what}")


class RandomState:
    """The state of every random generator that a closure may use, so that it can be called again with the same numbers.

    Python's, NumPy's and torch's global ones, and the `generators` given; others cannot be known.
    """

    def __init__(self, generators: Sequence[torch.Generator] = ()) -> None:
        self._own = [(g, g.get_state()) for g in generators]
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # users draw from it

    def restore(self) -> None:
        """Back to the numbers of then."""
        for generator, state in self._own:
            generator.set_state(state)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002  # likewise


def store(state: dict[str, Any], name: str, value: Any) -> None:
    """Put a value into a state, in place where that is possible: a captured step finds its state where it left it."""
    before = state.get(name)
    if (
        isinstance(before, Tensor)
        and isinstance(value, Tensor)
        and (before.device, before.dtype) == (value.device, value.dtype)
    ):
        before.copy_(value)
    else:
        state[name] = value.clone() if isinstance(value, Tensor) else value


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """A state of its own: what is saved does not change with what goes on, nor do two that load it share it."""
    return {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in state.items()
    }
