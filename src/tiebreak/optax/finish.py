"""The end of a training in JAX: the best point on the line from an anchor that is inside the tolerance."""

import math
from collections.abc import Callable
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
    check_number,
    differentiable,
    has_tracers,
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
    losses = {"lower": lower, "upper": lower if upper is None else upper}
    for name, loss in losses.items():
        if not callable(loss):
            raise TypeError(
                f"{name}={loss!r} must be a function of the parameters that returns its loss over all data"
            )
    if has_tracers((params, anchor)):
        raise TypeError(
            "finish(params, …) is for numbers, outside of jit, scan and vmap"
        )
    for path, leaf in tree_leaves_with_path(params):
        if not isinstance(leaf, (Array, np.ndarray, np.generic, int, float, complex)):
            raise TypeError(
                f"params{keystr(path)} is a {type(leaf).__name__}; leaves must be arrays or numbers: "
                "with Equinox take equinox.partition(model, equinox.is_array)[0], and combine in the losses"
            )
    ends, structure = jax.tree.flatten(params)
    begins = match(params, anchor, ("params", "anchor"))
    begins = list(map(_like, begins, ends))
    total = Totals(_number)
    if steps is not None and not callable(steps):
        raise TypeError(
            f"steps={steps!r} must be a function that takes parameters and returns them after some steps"
        )

    def repair() -> Callable[[], None]:
        nonlocal ends
        assert steps is not None
        trained = ends

        def undo() -> None:
            nonlocal ends
            ends = trained

        ends = match(params, steps(at(1.0)), ("params", "steps(params)"))
        return undo

    def at(place: float) -> Tree:
        pairs = zip(begins, ends, strict=True)
        leaves = [_between(begin, end, place) for begin, end in pairs]
        return jax.tree.unflatten(structure, leaves)

    def measure(place: float) -> tuple[float, float]:
        point = at(place)
        upper_loss = math.nan if upper is None else total("upper", upper(point))
        return total("lower", lower(point)), upper_loss

    if reference is not None:
        reference = _number("reference=", reference)
    result = line_search.finish(
        measure,
        allowed(tolerance),
        reference,
        upper is not None,
        2,
        None if steps is None else repair,
    )
    return at(result.place), result


def _anchor_params(anchor: Tree) -> Tree:
    """The parameters in the state of an optimizer; any other anchor is a tree of parameters itself."""
    twins = states_of(TwinState, anchor)
    barriers = states_of(BarrierState, anchor)
    anchors = [twin.reference_params for twin in twins]
    if not twins:
        anchors = [state.start for state in barriers if jax.tree.leaves(state.start)]
    if len(anchors) > 1:
        raise ValueError(
            f"anchor= has {len(anchors)} {'twins' if twins else 'starts'}: give the parameters of one"
        )
    if barriers and not anchors:
        raise ValueError(
            'anchor= is a state that keeps no parameters: only with_twin and reference="start" do; give those that '
            "training began with, or those that reached the number"
        )
    return anchors[0] if anchors else anchor


def _between(begin: Any, end: Any, place: float) -> Any:
    """begin + place · (end − begin), in float32 or wider, rounded once."""
    if place == 0:
        return begin
    if place == 1 or not differentiable(end):
        return end
    wide = widen(begin)
    return (wide + place * (widen(end) - wide)).astype(jnp.result_type(end))


def _like(begin: Any, end: Any) -> Any:
    """The anchor's leaf in the precision of the trained leaf, and on its devices."""
    dtype = jnp.result_type(end)
    if differentiable(end) and jnp.result_type(begin) != dtype:
        begin = jnp.asarray(begin).astype(dtype)
    return jax.device_put(begin, end.sharding) if isinstance(end, Array) else begin


def _number(name: str, value: Any) -> float:
    value = np.asarray(value)
    check_number(name, value)
    return float(value)
