"""An optimizer inside another object that imitates its class.

Lightning and Fabric wrap an optimizer in an object of a class that inherits from the optimizer's: methods then find the
wrapper as their `self`. It reads the optimizer's attributes, but what is written to it stays there.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

__all__ = ["on_itself"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def on_itself(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """Let a method that writes, or that says who it is, act on the optimizer, where it is called on a wrapper."""

    @wraps(method)
    def call(self: Any, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return method(vars(self).get("_optimizer", self), *args, **kwargs)

    return call
