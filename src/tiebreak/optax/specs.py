"""PartitionSpecs: of the parameters as a user gives them, and of an optimizer's state, which follow from those."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from tiebreak.optax.trees import Tree

#: The same on all devices.
EVERYWHERE: Any = PartitionSpec()  # type: ignore[no-untyped-call]  # jax

__all__ = ["is_spec", "leaf_specs", "spec_axes", "state_specs"]


def is_spec(node: Any) -> bool:
    """Whether a node says how something is sharded; None does, for not at all."""
    return node is None or isinstance(node, PartitionSpec)


def spec_axes(spec: Any) -> list[Any]:
    """The axes that a spec names.

    Examples
    --------
    >>> spec_axes(PartitionSpec(("data", "model"), None, "expert"))
    ['data', 'model', 'expert']
    """
    entries = () if spec is None else tuple(spec)
    return [axis for entry in entries if entry for axis in (entry if isinstance(entry, tuple) else (entry,))]


def leaf_specs(specs: Tree, tree: Tree) -> list[PartitionSpec]:
    """The spec of each leaf of a tree; `specs` is like the tree or a prefix of it, and None is ``PartitionSpec()``."""

    def each(spec: Any, part: Tree) -> Tree:
        return jax.tree.map(lambda _: EVERYWHERE if spec is None else spec, part)

    try:
        found = jax.tree.map(each, specs, tree, is_leaf=is_spec)
    except ValueError as error:
        error.add_note("param_specs must be a tree of PartitionSpecs like the parameters, or a prefix of one")
        raise
    return jax.tree.leaves(found, is_leaf=lambda node: isinstance(node, PartitionSpec))


def state_specs(state: Tree, params: Tree, param_specs: Tree) -> Tree:
    """PartitionSpecs for the state of an optimizer, for ``in_specs`` and ``out_specs`` of ``shard_map``.

    What has the place and the shape of a parameter is sharded as that parameter is; the rest is the same everywhere.

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
    known = {}
    for (path, leaf), spec in zip(
        jax.tree_util.tree_leaves_with_path(params), leaf_specs(param_specs, params), strict=True
    ):
        known[path] = (jnp.shape(leaf), spec)

    def found(path: tuple[Any, ...], leaf: Any) -> Any:
        for start in range(len(path) + 1):  # the longest end of the path that is the path of a parameter
            shape, spec = known.get(path[start:], (None, None))
            if spec is not None and shape == jnp.shape(leaf):
                return spec
        return EVERYWHERE

    return jax.tree_util.tree_map_with_path(found, state)
