"""An optimizer inside another object that imitates its class.

Lightning and Fabric wrap an optimizer in an object of a class that inherits from the optimizer's: methods then find the
wrapper as their `self`. It reads the optimizer's attributes, but what is written to it stays there.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

_Method = TypeVar("_Method", bound=Callable[..., Any])


def on_itself(method: _Method) -> _Method:
    """Let a method that writes, or that says who it is, act on the optimizer, where it is called on a wrapper."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(vars(self).get("_optimizer", self), *args, **kwargs)

    return cast(_Method, call)
