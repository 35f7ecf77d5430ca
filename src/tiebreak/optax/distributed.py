"""The mapped axes that one run is spread over, and how parameters, gradients and losses lie along them.

Under ``shard_map``, ``pmap`` or ``vmap`` each device has a shard of some parameters, copies of others, and a loss of
its part of the batch. :class:`Axes` holds the user's arguments about the axes; :class:`Layout` says for one step along
which axes there are copies of each leaf.
"""

from collections.abc import Iterable, Mapping
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
AxisNames: TypeAlias = tuple[Name, ...]
AxisSet: TypeAlias = frozenset[Name]
#: The spec of a value without shards.
REPLICATED: PartitionSpec = PartitionSpec()  # type: ignore[no-untyped-call]  # jax


def varying(value: Any) -> AxisSet:
    """The axes over which a value differs according to its type.

    JAX knows them under ``shard_map(check_vma=True)``.
    """
    if not hasattr(jax, "typeof"):  # before JAX 0.6
        return AxisSet()
    kind = jax.typeof(value)
    if hasattr(kind, "manual_axis_type"):
        return frozenset(kind.manual_axis_type.varying)
    return frozenset(getattr(kind, "vma", ()))


def varying_union(values: Iterable[Any]) -> AxisSet:
    """The axes over which at least one of the values differs."""
    return AxisSet().union(*map(varying, values))


def vary(tree: Tree, axes: Iterable[Name]) -> Tree:
    """The tree with types that differ over these axes."""

    def mark(value: Any) -> Any:
        # Sorted, because all processes must compile the same program.
        for axis in sorted(axes, key=str):
            if tracked(axis) and axis not in varying(value):
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


def without(axes: Iterable[Name], shards: AxisSet) -> AxisNames:
    """The axes along which there are copies of a leaf that is sharded over `shards`, in order."""
    return tuple(axis for axis in axes if axis not in shards)


def words(axes: Iterable[Name]) -> str:
    """Axes as an error names them and as code spells them."""
    names = sorted(map(repr, axes))
    if len(names) == 1:
        return names[0]
    return f"({', '.join(names)})"


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
        # The longest end of the path with a parameter of the same path and shape.
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
    copies : tuple of tuple
        For each leaf that takes part, the axes along which there are copies of it. It is sharded over the others.
    tracked : bool
        Whether types show that copies are equal. Otherwise the step compares them.
    """

    axes: AxisNames
    copies: tuple[AxisNames, ...]
    tracked: bool


@dataclass(frozen=True, eq=False)
class Axes:
    """The axes to reduce over, and the PartitionSpecs of the parameters, or None if types say them."""

    names: AxisNames = ()
    specs: Tree = None

    @property
    def untracked(self) -> list[Name]:
        """The axes over which types do not say what differs."""
        return [axis for axis in self.names if not tracked(axis)]

    def shards(self, tree: Tree, parameters: Leaves | None) -> list[AxisSet]:
        """For each leaf of the tree the axes among `names` over which its parameter is sharded."""
        by_type = [varying(leaf).intersection(self.names) for leaf in parameters or ()]
        if self.specs is not None:
            specs = leaf_specs(self.specs, tree)
            by_spec = [frozenset(spec_axes(spec)) for spec in specs]
            # Without parameters there are no types to compare with.
            rows = zip(paths(tree), by_spec, by_type, strict=False)
            for path, axes, differing in rows:
                if missing := differing - axes:
                    raise ValueError(
                        f"param_specs{path} does not name {words(missing)}, over which params{path} differs"
                    )
            return by_spec
        if self.untracked or parameters is None:
            raise ValueError(
                f"axis_name: JAX does not say which parameters differ over {words(self.untracked or self.names)} (under "
                "pmap, vmap or shard_map(check_vma=False), or without params in update(grads, state, params, …)): give "
                "param_specs=…, the PartitionSpecs of the parameters, or param_specs=PartitionSpec() where they are the "
                "same everywhere"
            )
        return by_type

    def layout(
        self,
        updates: Tree,
        params: Tree,
        gradients: Mapping[str, Leaves],
        losses: Iterable[Array],
        number: Array,
    ) -> Layout | None:
        """The layout of a step, None without `names`; raises if types show an error.

        Parameters
        ----------
        updates, params : tree
            `params` may be None.
        gradients : mapping of name to leaves
            All gradients of the step, in the order of `updates`.
        losses : iterable of numbers
        number : array
            A number of the state. There are independent runs along the axes over which it and all parameters differ.
        """
        differing = varying_union(chain(losses, *gradients.values()))
        if not self.names and not differing:
            return None
        leaves = jax.tree.leaves(updates)
        parameters = None
        if params is not None:
            parameters = match(updates, params, ("updates", "params"))
        shards = [AxisSet()] * len(leaves)
        if self.names:
            shards = self.shards(updates, parameters)
        types = map(varying, parameters or leaves)
        homes = list(map(frozenset.union, types, shards))
        for name, level in gradients.items():
            for path, leaf, home in zip(paths(updates), level, homes, strict=True):
                if extra := varying(leaf) - home:
                    raise ValueError(
                        f"{name}{path} differs over {words(extra)}, and the parameter does not: average it there, as "
                        "jax.lax.pmean(grads, axis_name) or tiebreak.optax.measure(…, axis_name=…) does"
                    )
        independent = varying(number).intersection(*homes)
        if extra := differing.difference(self.names) - independent:
            raise ValueError(
                f"gradients or losses differ over {words(extra)}, and so would the multiplier, where a parameter or the "
                f"state does not: give dynamic_barrier(…, axis_name={words(extra.union(self.names))})"
            )
        if not self.names:
            return None
        copies = []
        for leaf, axes in zip(leaves, shards, strict=True):
            if differentiable(leaf):
                copies.append(without(self.names, axes))
        return Layout(self.names, tuple(copies), not self.untracked)

    def check_losses(self, losses: Mapping[str, Any], independent: AxisSet) -> None:
        """Raise if a loss differs over an axis that is not named, and along which there are no independent runs."""
        for name, value in losses.items():
            extra = varying(value).difference(self.names) - independent
            if extra:
                raise ValueError(
                    f"{name} differs over {words(extra)}: where it is each device's own, measure(…, "
                    f"axis_name={words(extra.union(self.names))}) takes the mean; where it is a sum over shards, sum it "
                    f"in the loss, jax.lax.psum(…, {words(extra)})"
                )

    def averaged(self, gradients: Tree, params: Tree) -> Tree:
        """Gradients of the mean loss, from those of each device.

        Along an untracked axis JAX differentiates the sum of the losses of all devices by the values on each device.
        """
        untracked = self.untracked
        if not untracked:
            return gradients
        leaves, structure = jax.tree.flatten(gradients)
        shards = self.shards(gradients, jax.tree.leaves(params))
        means = []
        for leaf, axes in zip(leaves, shards, strict=True):
            total = all_sum(leaf, without(untracked, axes))
            means.append(total / size(untracked))
        return jax.tree.unflatten(structure, means)

    def mean(self, losses: dict[str, Any]) -> dict[str, Any]:
        """The means over all devices, in one collective."""
        if not self.names:
            return losses
        losses = vary(losses, self.names)
        return lax.pmean(losses, self.names)  # type: ignore[no-any-return, no-untyped-call]  # jax


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
    if isinstance(axis_name, (tuple, list)):
        names = axis_name
    else:
        names = (axis_name,)
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
    return Axes(tuple(names), param_specs)
