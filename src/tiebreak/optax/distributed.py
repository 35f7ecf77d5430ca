"""The mapped axes that one run is spread over: what is sharded over them, and sums over all devices.

Under ``shard_map``, ``pmap`` or ``vmap`` every device has a part of the numbers: products of the parameters that it
holds, and the loss of its own batch. The whole is the sum over the shards of a parameter, each counted once however
many copies there are, and the mean over the losses::

    fg = Σ_devices Σ_leaves ⟨∇f, ∇g⟩ / copies        g = Σ_devices loss / devices

One `psum` of a few numbers makes all of them, so that every device decides alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from tiebreak.optax import gradients
from tiebreak.optax.gradients import Leaves, Tree

#: The same on all devices.
EVERYWHERE: Any = PartitionSpec()  # type: ignore[no-untyped-call]  # jax


# --- what a type says about an axis ----------------------------------------------------------------------------------


def varying(value: Any) -> frozenset[Any]:
    """The axes over which a value differs, as far as its type says: JAX knows under ``shard_map(check_vma=True)``."""
    if not hasattr(jax, "typeof"):  # an old version, whose types say nothing
        return frozenset()
    kind = jax.typeof(value)
    if hasattr(kind, "manual_axis_type"):
        return frozenset(kind.manual_axis_type.varying)
    return frozenset(getattr(kind, "vma", ()))


def vary(tree: Tree, axes: Iterable[Any]) -> Tree:
    """The tree with types that differ over these axes."""
    tracked_axes = [
        axis for axis in sorted(axes, key=str) if tracked(axis)
    ]  # in one order in all processes

    def mark(value: Any) -> Any:
        for axis in tracked_axes:
            if axis not in varying(value):
                value = jnp.where(jax.lax.axis_index(axis) < 0, value, value)
        return value

    return jax.tree.map(mark, tree) if tracked_axes else tree


def tracked(axis: Any) -> bool:
    """Whether types say which values differ over an axis: then the index along it does."""
    try:
        return axis in varying(jax.lax.axis_index(axis))
    except NameError as error:
        error.add_note(
            f"axis_name={axis!r} is for functions mapped over that axis by jax.shard_map, jax.pmap or jax.vmap. Under "
            "jit alone, with sharded arrays, leave it out: inner products are over whole arrays then."
        )
        raise


def summed(values: Any, axes: Any) -> Any:
    """The sums over these axes, of several values in one collective."""
    return jax.lax.psum(values, axes)  # type: ignore[no-untyped-call]  # jax


def size(axes: Iterable[Any]) -> int:
    """The number of devices along these axes."""
    return prod(int(summed(1, axis)) for axis in axes)


def words(axes: Iterable[Any]) -> str:
    """Axes as an error names them, and as they are written in code."""
    names = sorted(map(repr, axes))
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


# --- PartitionSpecs --------------------------------------------------------------------------------------------------


def is_spec(node: Any) -> bool:
    """Whether a node is a PartitionSpec, or None, which stands for ``PartitionSpec()``."""
    return node is None or isinstance(node, PartitionSpec)


def spec_axes(spec: Any) -> list[Any]:
    """The axes that a spec names.

    Examples
    --------
    >>> spec_axes(PartitionSpec(("data", "model"), None, "expert"))
    ['data', 'model', 'expert']
    """
    return jax.tree.leaves(() if spec is None else tuple(spec))


def leaf_specs(specs: Tree, tree: Tree) -> list[PartitionSpec]:
    """The spec of each leaf of a tree; `specs` is like the tree or a prefix of it."""

    def spread_spec(spec: Any, part: Tree) -> Tree:
        return jax.tree.map(lambda _: EVERYWHERE if spec is None else spec, part)

    try:
        each = jax.tree.map(spread_spec, specs, tree, is_leaf=is_spec)
    except ValueError as error:
        error.add_note(
            "param_specs must be a tree of PartitionSpecs like the parameters, or a prefix of one"
        )
        raise
    return jax.tree.leaves(each, is_leaf=lambda node: isinstance(node, PartitionSpec))


def state_specs(state: Tree, params: Tree, param_specs: Tree) -> Tree:
    """PartitionSpecs for the state of an optimizer, for ``in_specs`` and ``out_specs`` of ``shard_map``.

    A leaf with the place and the shape of a parameter is sharded as that parameter is; the rest is the same everywhere.

    Parameters
    ----------
    state : tree
        Of any optimizer: ``optimizer.init(params)``, or its shapes, ``jax.eval_shape(optimizer.init, params)``.
    params : tree
        The parameters as a whole, or their shapes.
    param_specs : tree of PartitionSpec
        Theirs, or a prefix of it.

    Examples
    --------
    >>> import optax
    >>> P, params = PartitionSpec, {"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)}
    >>> optimizer = optax.adam(0.1)
    >>> specs = state_specs(jax.eval_shape(optimizer.init, params), params, {"w": P("model"), "b": P()})
    >>> specs[0].mu["w"], specs[0].nu["b"], specs[0].count
    (P('model',), P(), P())
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    specs = leaf_specs(param_specs, params)
    by_path = {
        path: (jnp.shape(leaf), spec)
        for (path, leaf), spec in zip(leaves, specs, strict=True)
    }

    def spec_of(path: tuple[Any, ...], leaf: Any) -> Any:
        for start in range(
            len(path) + 1
        ):  # the longest end of the path that is the path of a parameter
            shape, spec = by_path.get(path[start:], (None, None))
            if spec is not None and shape == jnp.shape(leaf):
                return spec
        return EVERYWHERE

    return jax.tree_util.tree_map_with_path(spec_of, state)


# --- one step over several devices -----------------------------------------------------------------------------------


class Spread(NamedTuple):
    """Where the leaves of an update lie; hashable, for a jit.

    Attributes
    ----------
    names : tuple
        The axes to reduce over.
    shards : tuple of tuple
        For each leaf that takes part, the axes over which it is sharded; over the others there are copies of it.
    trusted : bool
        Whether types show that copies are equal. Otherwise they are compared.
    """

    names: tuple[Any, ...]
    shards: tuple[tuple[Any, ...], ...]
    trusted: bool

    def reduced(
        self,
        upper: Leaves,
        lower: Leaves,
        numbers: Sequence[Any] = (),
        others: Sequence[Leaves] = (),
    ) -> tuple[tuple[jax.Array, ...], list[jax.Array], jax.Array]:
        """fg, gg and ff of all devices, the means of further numbers, and whether copies of all gradients are equal.

        `others` are gradients that are compared alone.
        """
        products = [jnp.zeros((), jnp.float32)] * 3
        for shards in sorted(set(self.shards), key=str):
            group = [i for i, axes in enumerate(self.shards) if axes == shards]
            copies = size(self._copied(shards))
            group_products = gradients.dots(
                [upper[i] for i in group], [lower[i] for i in group]
            )
            products = [
                total + value / copies
                for total, value in zip(products, group_products, strict=True)
            ]
        parts = [*products, *(number / size(self.names) for number in numbers)]
        norms = (
            []
            if self.trusted
            else [
                part
                for leaves in (upper, lower, *others)
                for part in self._norms(leaves)
            ]
        )
        whole = summed(vary(jnp.stack([*parts, *norms]), self.names), self.names)
        fg, gg, ff = (value.astype(products[0].dtype) for value in whole[:3])
        means = [
            mean.astype(number.dtype)
            for mean, number in zip(whole[3:], numbers, strict=False)
        ]
        of_mean, of_first = whole[len(parts) :].reshape(-1, 2).T
        # Squares that nearly vanish are rounded to nothing in one sum and not in the other.
        least = max(
            (float(limit.tiny / limit.eps) for limit in map(gradients.limits, upper)),
            default=0.0,
        )
        equal = (of_mean == of_first) | (
            jnp.abs(of_mean - of_first) <= 1e-3 * of_mean + least
        )
        return (fg, gg, ff), means, jnp.all(equal)

    def _copied(self, shards: Sequence[Any]) -> list[Any]:
        """The axes along which there are copies of a leaf that is sharded over `shards`."""
        return [axis for axis in self.names if axis not in shards]

    def _norms(self, leaves: Leaves) -> list[jax.Array]:
        """Two parts of the squared norm of each leaf: of the mean over its copies, and of the first copy."""
        norms = []
        for leaf, shards in zip(leaves, self.shards, strict=True):
            square = gradients.products(leaf, leaf)
            copied = self._copied(shards)
            is_first = jnp.all(
                jnp.array(
                    [jax.lax.axis_index(axis) == 0 for axis in copied], dtype=bool
                )
            )
            norms += [square / size(copied), jnp.where(is_first, square, 0.0)]
        return norms

    def largest(self, *values: jax.Array) -> jax.Array:
        """The largest of each value over all devices."""
        stacked = vary(jax.lax.stop_gradient(jnp.stack(values)), self.names)
        return jax.lax.pmax(stacked, self.names)  # type: ignore[no-untyped-call, no-any-return]  # jax


@dataclass(frozen=True, eq=False)
class Axes:
    """The axes to reduce over, and the parameters' PartitionSpecs, or None where types say it; see `axes_named`."""

    names: tuple[Any, ...] = ()
    specs: Any = None

    @property
    def untracked(self) -> list[Any]:
        """The axes of which JAX does not know what differs over them."""
        return [axis for axis in self.names if not tracked(axis)]

    def shards(self, tree: Tree, params: Tree) -> list[frozenset[Any]]:
        """For each leaf of the tree the axes among `names` over which its parameter is sharded."""
        if self.specs is None and self.untracked:
            raise ValueError(
                f"axis_name: JAX does not say which parameters differ over {words(self.untracked)} (under pmap, vmap "
                "or shard_map(check_vma=False)): give param_specs=…, the PartitionSpecs of the parameters, or "
                "param_specs=PartitionSpec() where they are the same everywhere"
            )
        if self.specs is None and params is None:
            raise ValueError(
                "axis_name needs the parameters, update(grads, state, params, …), or param_specs=…"
            )
        by_type = None
        if params is not None:
            by_type = [
                varying(p) & set(self.names)
                for p in gradients.match(tree, params, ("updates", "params"))
            ]
        if self.specs is None:
            return by_type or []
        by_spec = [
            frozenset(spec_axes(spec)) & set(self.names)
            for spec in leaf_specs(self.specs, tree)
        ]
        for path, axes, shown in zip(
            _paths(tree), by_spec, by_type or by_spec, strict=True
        ):
            if missing := shown - axes:
                raise ValueError(
                    f"param_specs{path} does not name {words(missing)}, over which params{path} differs"
                )
        return by_spec

    def spread(
        self,
        updates: Tree,
        params: Tree,
        grads: Mapping[str, Leaves],
        losses: Mapping[str, Any],
        state: Any,
    ) -> Spread | None:
        """The places of the leaves, None on one device; raises where types show that something is wrong.

        Parameters
        ----------
        updates, params : tree
            The second may be None.
        grads : mapping of name to leaves
            All gradients of the step, in the order of `updates`.
        losses : mapping of name to number
        state : array
            One of the state's numbers: along each axis that it differs over there are independent runs.
        """
        leaves = jax.tree.leaves(updates)
        if not self.names and not any(map(varying, [*leaves, *losses.values()])):
            return None
        shards = (
            self.shards(updates, params)
            if self.names
            else [frozenset[Any]()] * len(leaves)
        )
        matched = (
            leaves
            if params is None
            else gradients.match(updates, params, ("updates", "params"))
        )
        homes = [varying(p) for p in matched]
        differing: frozenset[Any] = frozenset().union(
            *(varying(value) for value in losses.values())
        )
        for name, level in grads.items():
            for path, gradient, home, axes in zip(
                _paths(updates), level, homes, shards, strict=True
            ):
                if more := varying(gradient) - home - axes:
                    raise ValueError(
                        f"{name}{path} differs over {words(more)}, and the parameter does not: average it there, as "
                        "jax.lax.pmean(grads, axis_name) or tiebreak.optax.measure(…, axis_name=…) does"
                    )
                differing |= varying(gradient)
        apart = differing - set(self.names)
        if more := apart - varying(state).intersection(*homes):
            raise ValueError(
                f"gradients or losses differ over {words(more)}, and so would the multiplier, where a parameter or the "
                f"state does not: give dynamic_barrier(…, axis_name={words(more | set(self.names))})"
            )
        if not self.names:
            return None  # an independent run in every place
        taking_part = [
            axes
            for axes, leaf in zip(shards, leaves, strict=True)
            if gradients.differentiable(leaf)
        ]
        places = tuple(tuple(sorted(axes, key=str)) for axes in taking_part)
        return Spread(self.names, places, not self.untracked)

    def averaged(self, grads: Tree, params: Tree) -> Tree:
        """Gradients of the mean loss, from each device's own, where types do not say which of them JAX has summed.

        There JAX differentiates the sum of all devices' losses by what each of them holds.
        """
        untracked = self.untracked
        if not untracked:
            return grads
        leaves, structure = jax.tree.flatten(grads)
        means = []
        for leaf, shards in zip(leaves, self.shards(grads, params), strict=True):
            copied = tuple(axis for axis in untracked if axis not in shards)
            means.append((summed(leaf, copied) if copied else leaf) / size(untracked))
        return jax.tree.unflatten(structure, means)

    def mean(self, values: Sequence[Any]) -> list[Any]:
        """The mean over all devices, of several numbers in one collective."""
        if not self.names or not values:
            return list(values)
        totals = summed(
            [vary(jnp.asarray(value), self.names) for value in values], self.names
        )
        return [total / size(self.names) for total in totals]

    def own(self, params: Tree) -> list[Any]:
        """The axes along which every place has an independent run: the others that the parameters differ over."""
        axes: frozenset[Any] = frozenset().union(
            *(varying(p) for p in jax.tree.leaves(params))
        )
        return sorted(axes - set(self.names), key=str)


def axes_named(axis_name: Any, param_specs: Any = None) -> Axes:
    """Axes from the arguments of a user, checked.

    Examples
    --------
    >>> axes_named(("data", "model"), PartitionSpec("model")).names
    ('data', 'model')
    >>> axes_named("data", PartitionSpec("model"))
    Traceback (most recent call last):
    ...
    ValueError: param_specs names the axis 'model'; axis_name='data' must name it, too
    """
    if axis_name is None:
        if param_specs is not None:
            raise ValueError("param_specs has no effect without axis_name=")
        return Axes()
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"axis_name={axis_name!r} must be the name of a mapped axis, or several names, each once"
        )
    for spec in jax.tree.leaves(param_specs, is_leaf=is_spec):
        if not is_spec(spec):
            raise ValueError(
                f"param_specs has {spec!r}; it must be a PartitionSpec, or a tree of them"
            )
        for axis in spec_axes(spec):
            if axis not in names:
                raise ValueError(
                    f"param_specs names the axis {axis!r}; axis_name={axis_name!r} must name it, too"
                )
    return Axes(names, param_specs)


def _paths(tree: Tree) -> list[str]:
    """The leaves of a tree as an error names them."""
    return [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]
