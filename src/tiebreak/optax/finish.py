"""The end of a training in JAX: parameters on the line from an anchor, where the tolerance is kept and used."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiebreak import finishing
from tiebreak.finishing import Finish, Totals
from tiebreak.optax import gradients
from tiebreak.optax.gradients import Tree
from tiebreak.optax.losses import states_of
from tiebreak.optax.optimizer import BarrierState
from tiebreak.optax.twin import TwinState
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
    """After the last step: parameters where the tolerance is kept, and used, on the line from the anchor.

    A model that is outside its tolerance goes back towards the anchor until it is inside. One that is inside goes on,
    away from it, as long as the upper loss falls, or back, if it falls there instead. It takes some eight evaluations
    of both losses, 25 at most. Call it outside of ``jit``; the losses may be compiled. All leaves of floats
    move, those that the lower loss does not reach, too; whole numbers and truths stay (at the anchor itself they are
    its own).

    Parameters
    ----------
    params : tree
        The trained parameters.
    anchor : tree
        Parameters that are inside: the twin's, ``state.reference_params``, those that training began with, or those
        that reached a number. Or the state of the optimizer: its twin is taken, or with ``reference="start"`` the
        parameters that it began with.
    lower, upper : callable
        Of the parameters; each returns its loss over as much data as the promise is made for: one number, or the losses
        of batches, of which the mean is taken. Without `upper` a model that is inside stays where it is.
    tolerance : float or str
        How far the lower loss may lie above its reference; ``"2%"`` is a share of that.
    reference : float, optional
        The anchor's lower loss on the same data, unless given.
    steps : callable, optional
        Called with `params` if they are outside the tolerance, before the search: it takes some steps on the lower loss
        alone, with a small learning rate, and returns the new parameters.

    Returns
    -------
    params : tree
    found : Finish
        Where on the line, both losses there, and before. ``print`` tells it in a sentence.

    Examples
    --------
    >>> x, found = finish(
    ...     jnp.array([1.0, 2.0]),
    ...     jnp.array([1.0, 1.0]),
    ...     lower=lambda x: (x[0] - x[1]) ** 2,
    ...     upper=lambda x: -x[1],
    ...     tolerance=2.0,
    ... )
    >>> [round(float(value), 2) for value in x], found.place, round(found.excess, 2)
    ([1.0, 2.38], 1.375, 0.95)
    """
    anchor = _anchor_params(anchor)
    for name, loss in (("lower", lower), ("upper", upper)):
        if not callable(loss) and not (loss is None and name == "upper"):
            raise TypeError(
                f"{name}={loss!r} must be a function of the parameters that returns its loss over all data"
            )
    if any(
        isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((params, anchor))
    ):
        raise TypeError(
            "finish(params, …) is for numbers, outside of jit, scan and vmap"
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not isinstance(
            leaf, (jax.Array, np.ndarray, np.generic, int, float, complex)
        ):
            raise TypeError(
                f"params{jax.tree_util.keystr(path)} is a {type(leaf).__name__}; leaves must be arrays or numbers: "
                "with Equinox take equinox.partition(model, equinox.is_array)[0], and combine in the losses"
            )
    ends, structure = jax.tree.flatten(params)
    begins = [
        _like(begin, end)
        for begin, end in zip(
            gradients.match(params, anchor, ("params", "anchor")), ends, strict=True
        )
    ]
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

        ends = gradients.match(
            params,
            steps(jax.tree.unflatten(structure, ends)),
            ("params", "steps(params)"),
        )
        return undo

    def at(place: float) -> Tree:
        leaves = [
            _between(begin, end, place) for begin, end in zip(begins, ends, strict=True)
        ]
        return jax.tree.unflatten(structure, leaves)

    def measure(place: float) -> tuple[float, float]:
        point = at(place)
        upper_loss = math.nan if upper is None else total("upper", upper(point))
        return total("lower", lower(point)), upper_loss

    reference = None if reference is None else _number("reference=", reference)
    result = finishing.finish(
        measure,
        allowed(tolerance),
        reference,
        upper is not None,
        2,
        None if steps is None else repair,
    )
    return at(result.place), result


def _anchor_params(anchor: Tree) -> Tree:
    """The parameters that the state of an optimizer keeps; any other anchor is a tree of parameters itself."""
    twins = [twin.reference_params for twin in states_of(TwinState, anchor)]
    barriers = [] if twins else states_of(BarrierState, anchor)
    anchors = twins or [
        barrier.start for barrier in barriers if jax.tree.leaves(barrier.start)
    ]
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
    if place == 1 or not gradients.differentiable(end):
        return end
    wide = gradients.widen(begin)
    return (wide + place * (gradients.widen(end) - wide)).astype(jnp.result_type(end))


def _like(begin: Any, end: Any) -> Any:
    """The anchor's leaf in the precision of the trained one, and on its devices."""
    if gradients.differentiable(end) and jnp.result_type(begin) != jnp.result_type(end):
        begin = jnp.asarray(begin).astype(jnp.result_type(end))
    return jax.device_put(begin, end.sharding) if isinstance(end, jax.Array) else begin


def _number(name: str, value: Any) -> float:
    value = np.asarray(value)
    if value.ndim or not (
        jnp.issubdtype(value.dtype, jnp.floating) or value.dtype.kind in "iu"
    ):
        raise ValueError(
            f"{name} has shape {value.shape} and dtype {value.dtype}; it must be one real number"
        )
    return float(value)
