"""The mapped axes that one run is spread over, and how parameters, gradients and losses lie along them.

Under ``shard_map``, ``pmap`` or ``vmap`` each device has a shard of some parameters, copies of others, and a loss of
its part of the batch. :class:`Axes` holds what the user says about the axes; :class:`Layout` says for one step which
leaf is sharded over which axes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from tiebreak.optax.gradients import Leaves, Tree, differentiable, match, paths

#: The name of a mapped axis.
Name: TypeAlias = Any
#: For each leaf the axes over which it differs.
Homes: TypeAlias = list[frozenset[Name]]
#: The spec of a value that is the same on all devices.
REPLICATED: PartitionSpec = PartitionSpec()  # type: ignore[no-untyped-call]  # jax


def varying(value: Any) -> frozenset[Name]:
    """The axes over which a value differs according to its type.

    JAX knows them under ``shard_map(check_vma=True)``.
    """
    if not hasattr(jax, "typeof"):  # before JAX 0.6
        return frozenset()
    kind = jax.typeof(value)
    if hasattr(kind, "manual_axis_type"):
        return frozenset(kind.manual_axis_type.varying)
    return frozenset(getattr(kind, "vma", ()))


def varying_union(values: Iterable[Any]) -> frozenset[Name]:
    """The axes over which at least one of the values differs."""
    return frozenset[Name]().union(*map(varying, values))


def vary(tree: Tree, axes: Iterable[Name]) -> Tree:
    """The tree with types that differ over these axes."""
    # Sorted, because all processes must compile the same program.
    tracked_axes = [axis for axis in sorted(axes, key=str) if tracked(axis)]

    def mark(value: Any) -> Any:
        for axis in tracked_axes:
            if axis not in varying(value):
                value = jnp.where(lax.axis_index(axis) < 0, value, value)
        return value

    return jax.tree.map(mark, tree)


def tracked(axis: Name) -> bool:
    """Whether types say which values differ over an axis: then the type of the index along the axis does."""
    try:
        return axis in varying(lax.axis_index(axis))
    except NameError as error:
        error.add_note(
            f"axis_name={axis!r} is for functions mapped over that axis by jax.shard_map, jax.pmap or jax.vmap. Under "
            "jit alone, with sharded arrays, leave it out: inner products are over whole arrays then."
        )
        raise


def all_sum(values: Tree, axes: Name) -> Tree:
    """The sums over these axes, of all leaves in one collective."""
    return lax.psum(values, axes)  # type: ignore[no-untyped-call]  # jax


def size(axes: Iterable[Name]) -> int:
    """The number of devices along these axes."""
    return int(all_sum(1, tuple(axes)))


def words(axes: Iterable[Name]) -> str:
    """Axes as an error names them and as code spells them."""
    names = sorted(map(repr, axes))
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def is_spec(node: object) -> bool:
    """Whether a node is a PartitionSpec, or None, which stands for ``PartitionSpec()``."""
    return node is None or isinstance(node, PartitionSpec)


def spec_axes(spec: PartitionSpec | None) -> list[Name]:
    """The axes that a spec names.

    Examples
    --------
    >>> spec_axes(PartitionSpec(("data", "model"), None, "expert"))
    ['data', 'model', 'expert']
    """
    return jax.tree.leaves(tuple(spec or ()))


def leaf_specs(specs: Tree, tree: Tree) -> list[PartitionSpec]:
    """The spec of each leaf of a tree; `specs` is like the tree or a prefix of it."""

    def repeat(spec: PartitionSpec | None, part: Tree) -> Tree:
        return jax.tree.map(lambda _: spec or REPLICATED, part)

    try:
        spec_tree = jax.tree.map(repeat, specs, tree, is_leaf=is_spec)
    except ValueError as error:
        error.add_note(
            "param_specs must be a tree of PartitionSpecs like the parameters, or a prefix of one"
        )
        raise
    return jax.tree.leaves(spec_tree)


def state_specs(state: Tree, params: Tree, param_specs: Tree) -> Tree:
    """PartitionSpecs for the state of an optimizer, for ``in_specs`` and ``out_specs`` of ``shard_map``.

    A leaf with the path and the shape of a parameter is sharded as that parameter is. All other leaves are the same
    on all devices.

    Parameters
    ----------
    state : tree
        Of any optimizer: ``optimizer.init(params)``, or its shapes, ``jax.eval_shape(optimizer.init, params)``.
    params : tree
        The whole parameters, or their shapes.
    param_specs : tree of PartitionSpec
        The specs of the parameters, or a prefix of their tree.

    Examples
    --------
    >>> import optax
    >>> P, params = PartitionSpec, {"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)}
    >>> optimizer = optax.adam(0.1)
    >>> specs = state_specs(jax.eval_shape(optimizer.init, params), params, {"w": P("model"), "b": P()})
    >>> specs[0].mu["w"], specs[0].nu["b"], specs[0].count
    (P('model',), P(), P())
    """
    specs = iter(leaf_specs(param_specs, params))
    leaves = jax.tree_util.tree_leaves_with_path(params)
    by_path = {path: (jnp.shape(leaf), next(specs)) for path, leaf in leaves}

    def spec_of(path: tuple[Any, ...], leaf: Any) -> PartitionSpec:
        # The longest end of the path that is the path of a parameter of this shape.
        for start in range(len(path) + 1):
            shape, spec = by_path.get(path[start:], (None, REPLICATED))
            if shape == jnp.shape(leaf):
                return spec
        return REPLICATED

    return jax.tree_util.tree_map_with_path(spec_of, state)


class Layout(NamedTuple):
    """How the leaves of an update lie on the devices; hashable, as a static argument of a jit.

    Attributes
    ----------
    axes : tuple
        The axes to reduce over.
    shards : tuple of tuple
        For each leaf that takes part, the axes over which it is sharded; there are copies of it along the others.
    tracked : bool
        Whether types show that copies are equal. Otherwise the step compares them.
    """

    axes: tuple[Name, ...]
    shards: tuple[tuple[Name, ...], ...]
    tracked: bool

    def copy_axes(self, shards: Sequence[Name]) -> list[Name]:
        """The axes along which there are copies of a leaf that is sharded over `shards`."""
        return [axis for axis in self.axes if axis not in shards]


@dataclass(frozen=True, eq=False)
class Axes:
    """The axes to reduce over, and the PartitionSpecs of the parameters, or None if types say them."""

    names: tuple[Name, ...] = ()
    specs: Tree = None

    @property
    def untracked(self) -> list[Name]:
        """The axes over which types do not say what differs."""
        return [axis for axis in self.names if not tracked(axis)]

    def shards(self, tree: Tree, by_type: Homes | None) -> Homes:
        """For each leaf of the tree the axes among `names` over which its parameter is sharded.

        `by_type` are the axes over which the parameters differ according to their types.
        """
        if self.specs is None and self.untracked:
            raise ValueError(
                f"axis_name: JAX does not say which parameters differ over {words(self.untracked)} (under pmap, vmap "
                "or shard_map(check_vma=False)): give param_specs=…, the PartitionSpecs of the parameters, or "
                "param_specs=PartitionSpec() where they are the same everywhere"
            )
        if self.specs is None and by_type is None:
            raise ValueError(
                "axis_name needs the parameters, update(grads, state, params, …), or param_specs=…"
            )
        by_type = [axes.intersection(self.names) for axes in by_type or ()]
        if self.specs is None:
            return by_type
        specs = leaf_specs(self.specs, tree)
        by_spec = [frozenset(self.names).intersection(spec_axes(s)) for s in specs]
        # Without parameters there are no types to compare with.
        for path, spec, differs in zip(paths(tree), by_spec, by_type, strict=False):
            if missing := differs - spec:
                raise ValueError(
                    f"param_specs{path} does not name {words(missing)}, over which params{path} differs"
                )
        return by_spec

    def layout(
        self,
        updates: Tree,
        params: Tree,
        gradients: Mapping[str, Leaves],
        losses: Mapping[str, Array],
        number: Array,
    ) -> Layout | None:
        """The layout of a step, None on one device; raises if types show an error.

        Parameters
        ----------
        updates, params : tree
            `params` may be None.
        gradients : mapping of name to leaves
            All gradients of the step, in the order of `updates`.
        losses : mapping of name to number
        number : array
            A number of the state. Along each axis over which it differs there are independent runs.
        """
        leaves = jax.tree.leaves(updates)
        if not self.names and not varying_union([*leaves, *losses.values()]):
            return None
        by_type = None
        if params is not None:
            matched = match(updates, params, ("updates", "params"))
            by_type = list(map(varying, matched))
        homes = by_type or list(map(varying, leaves))
        shards = [frozenset[Name]()] * len(leaves)
        if self.names:
            shards = self.shards(updates, by_type)
        for name, level in gradients.items():
            rows = zip(paths(updates), level, homes, shards, strict=True)
            for path, gradient, home, axes in rows:
                if extra := varying(gradient) - home - axes:
                    raise ValueError(
                        f"{name}{path} differs over {words(extra)}, and the parameter does not: average it there, as "
                        "jax.lax.pmean(grads, axis_name) or tiebreak.optax.measure(…, axis_name=…) does"
                    )
        values = chain(losses.values(), *gradients.values())
        outside = varying_union(values).difference(self.names)
        if extra := outside - varying(number).intersection(*homes):
            raise ValueError(
                f"gradients or losses differ over {words(extra)}, and so would the multiplier, where a parameter or the "
                f"state does not: give dynamic_barrier(…, axis_name={words(extra.union(self.names))})"
            )
        if not self.names:
            return None  # each place has an independent run
        pairs = zip(leaves, shards, strict=True)
        parts = [sorted(axes, key=str) for leaf, axes in pairs if differentiable(leaf)]
        return Layout(self.names, tuple(map(tuple, parts)), not self.untracked)

    def averaged(self, gradients: Tree, params: Tree) -> Tree:
        """Gradients of the mean loss, from those of each device.

        Along an untracked axis JAX differentiates the sum of the losses of all devices by the values on each device.
        """
        untracked = self.untracked
        if not untracked:
            return gradients
        leaves, structure = jax.tree.flatten(gradients)
        homes = list(map(varying, jax.tree.leaves(params)))
        means = []
        pairs = zip(leaves, self.shards(gradients, homes), strict=True)
        for leaf, shards in pairs:
            copies = tuple(axis for axis in untracked if axis not in shards)
            means.append(all_sum(leaf, copies) / size(untracked))
        return jax.tree.unflatten(structure, means)

    def mean(self, losses: Mapping[str, Any]) -> Mapping[str, Any]:
        """The means over all devices, in one collective."""
        if not self.names:
            return losses
        totals = all_sum(vary(dict(losses), self.names), self.names)
        return {name: totals[name] / size(self.names) for name in losses}


def checked_axes(axis_name: Name, param_specs: Tree = None) -> Axes:
    """The axes of the user's arguments; raise unless they are legal.

    Examples
    --------
    >>> checked_axes(("data", "model"), PartitionSpec("model")).names
    ('data', 'model')
    >>> checked_axes("data", PartitionSpec("model"))
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
