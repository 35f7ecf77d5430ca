"""The end of a training in JAX: the best point on the line from an anchor that is inside the tolerance."""

import math
from collections.abc import Callable
from functools import partial
from numbers import Number
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import keystr, tree_leaves_with_path

from tiebreak import line_search
from tiebreak.line_search import Finish, Totals
from tiebreak.optax.gradients import (
    Tree,
    cast,
    check_number,
    differentiable,
    match,
    widen,
)
from tiebreak.optax.step_info import BarrierState, TwinState, states_of
from tiebreak.options import allowed


def finish(
    params: Tree,
    anchor: Tree,
    *,
    lower: Callable[[Tree], Any],
    upper: Callable[[Tree], Any] | None = None,
    tolerance: float | str,
    reference: float | None = None,
    steps: Callable[[Tree], Tree] | None = None,
) -> tuple[Tree, Finish]:
    """After the last step: find parameters on the line from the anchor that keep the tolerance and use it.

    A model that is outside its tolerance moves back towards the anchor until it is inside. A model that is inside moves
    away from the anchor as long as the upper loss falls, or towards it if the upper loss falls there instead. The
    search evaluates both losses about eight times, at most 25 times. Call it outside of ``jit``; the losses may be
    compiled. All leaves of floats move, including those that the lower loss does not reach. Integers and booleans do
    not move; at the anchor they are those of the anchor.

    Parameters
    ----------
    params : tree
        The trained parameters.
    anchor : tree
        Parameters that are inside: the twin's, ``state.reference_params``, those that training began with, or those
        that reached a number. Or the state of the optimizer, which contains its twin, or with ``reference="start"``
        the parameters that training began with.
    lower, upper : callable
        Functions of the parameters. Each returns its loss over all data that the promise is made for: one number, or
        the losses of batches, whose mean is used. Without `upper` a model that is inside does not move.
    tolerance : float or str
        How far the lower loss may lie above its reference; ``"2%"`` is a share of the reference.
    reference : float, optional
        By default the anchor's lower loss on the same data.
    steps : callable, optional
        Called before the search with `params` if they are outside the tolerance. It takes some steps on the lower loss
        alone, with a small learning rate, and returns the new parameters.

    Returns
    -------
    params : tree
    result : Finish
        The place on the line, both losses there, and both before. ``print`` writes it as a sentence.

    Examples
    --------
    >>> x, result = finish(
    ...     jnp.array([1.0, 2.0]),
    ...     jnp.array([1.0, 1.0]),
    ...     lower=lambda x: (x[0] - x[1]) ** 2,
    ...     upper=lambda x: -x[1],
    ...     tolerance=2.0,
    ... )
    >>> [round(float(value), 2) for value in x], result.place, round(result.excess, 2)
    ([1.0, 2.38], 1.375, 0.95)
    """
    anchor = _anchor_params(anchor)
    loss = "of the parameters that returns its loss over all data"
    stepper = "that takes parameters and returns them after some steps"
    functions = {
        "lower": (lower, loss),
        "upper": (upper, loss),
        "steps": (steps, stepper),
    }
    for name, (function, contract) in functions.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name}={function!r} must be a function {contract}")
    for path, leaf in tree_leaves_with_path(params):
        if not isinstance(leaf, (Array, np.ndarray, np.generic, Number)):
            raise TypeError(
                f"params{keystr(path)} is a {type(leaf).__name__}; leaves must be arrays or numbers: "
                "with Equinox take equinox.partition(model, equinox.is_array)[0], and combine in the losses"
            )
    ends, structure = jax.tree.flatten(params)
    anchor_leaves = match(params, anchor, ("params", "anchor"))
    begins = list(map(_like, anchor_leaves, ends))
    total = Totals(_number)

    def at(place: float) -> Tree:
        leaves = map(partial(_between, place), begins, ends)
        return jax.tree.unflatten(structure, leaves)

    def measure(place: float) -> tuple[float, float]:
        point = at(place)
        upper_loss = math.nan
        if upper is not None:
            upper_loss = total("upper", upper(point))
        return total("lower", lower(point)), upper_loss

    def repair() -> Callable[[], None]:
        trained = list(ends)
        moved = steps(at(1.0))  # type: ignore[misc]  # without steps, nothing calls this function
        ends[:] = match(params, moved, ("params", "steps(params)"))
        return partial(ends.__setitem__, slice(None), trained)

    if reference is not None:
        reference = _number("reference=", reference)
    result = line_search.finish(
        measure,
        allowed(tolerance),
        reference,
        has_upper=upper is not None,
        repair=repair if steps else None,
    )
    return at(result.place), result


def _anchor_params(anchor: Tree) -> Tree:
    """The parameters in the state of an optimizer; any other anchor is a tree of parameters itself."""
    barriers = states_of(BarrierState, anchor)
    anchors = [twin.reference_params for twin in states_of(TwinState, anchor)]
    kind = "twins"
    if not anchors:
        anchors = [state.start for state in barriers if jax.tree.leaves(state.start)]
        kind = "starts"
    if len(anchors) > 1:
        raise ValueError(
            f"anchor= has {len(anchors)} {kind}: give the parameters of one"
        )
    if barriers and not anchors:
        raise ValueError(
            'anchor= is a state that keeps no parameters: only with_twin and reference="start" do; give those that '
            "training began with, or those that reached the number"
        )
    if anchors:
        return anchors[0]
    return anchor


def _between(place: float, begin: Any, end: Any) -> Any:
    """begin + place · (end − begin), in float32 or wider, rounded once."""
    if place == 0:
        return begin
    if place == 1 or not differentiable(end):
        return end
    wide = widen(begin)
    return cast(wide + place * (widen(end) - wide), like=end)


def _like(begin: Any, end: Any) -> Any:
    """The anchor's leaf in the precision of the trained leaf, and on its devices."""
    if differentiable(end) and jnp.result_type(begin) != jnp.result_type(end):
        begin = cast(begin, like=end)
    if isinstance(end, Array):
        return jax.device_put(begin, end.sharding)
    return begin


def _number(name: str, value: Any) -> float:
    value = np.asarray(value)
    check_number(name, value)
    return float(value)
