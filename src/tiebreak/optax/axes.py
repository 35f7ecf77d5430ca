"""The axes that one run is spread over: what lies where, and what cannot be right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tiebreak.optax import trees
from tiebreak.optax.collectives import Spread, size, summed, tracked, vary, varying, words
from tiebreak.optax.specs import is_spec, leaf_specs, spec_axes
from tiebreak.optax.trees import Tree

__all__ = ["Axes", "axes_named"]


@dataclass(frozen=True, eq=False)
class Axes:
    """The axes to reduce over, and the parameters' PartitionSpecs, or None where types are to say; see `axes_named`."""

    names: tuple[Any, ...] = ()
    specs: Any = None

    def shards(self, tree: Tree, params: Tree) -> list[frozenset[Any]]:
        """Of each leaf of the tree the axes among `names` over which the parameter is sharded."""
        unknown = [axis for axis in self.names if not tracked(axis)]
        if self.specs is not None:
            found = [frozenset(spec_axes(spec)) & set(self.names) for spec in leaf_specs(self.specs, tree)]
        elif unknown:
            raise ValueError(
                f"axis_name: JAX does not say which parameters differ over {words(unknown)} (under pmap, vmap or "
                "shard_map(check_vma=False)): give param_specs=…, the PartitionSpecs of the parameters, or "
                "param_specs=PartitionSpec() where they are the same everywhere"
            )
        elif params is None:
            raise ValueError("axis_name needs the parameters, update(grads, state, params, …), or param_specs=…")
        else:
            found = [varying(p) & set(self.names) for p in trees.match(tree, params, ("updates", "params"))]
        if params is None or self.specs is None:
            return found
        for (path, p), said in zip(_paths(params, tree), found, strict=True):
            if more := (varying(p) & set(self.names)) - said:
                raise ValueError(f"param_specs{path} does not name {words(more)}, over which params{path} differs")
        return found

    def spread(
        self, updates: Tree, params: Tree, grads: Mapping[str, Sequence[Any]], losses: Mapping[str, Any], state: Any
    ) -> Spread | None:
        """Where the leaves lie; what types show to be wrong is refused.

        Parameters
        ----------
        updates, params : tree
            The second may be None.
        grads : mapping of name to leaves
            All gradients of the step, in the order of `updates`.
        losses : mapping of name to number
        state : array
            One of the state's numbers: along each axis that it differs over there are runs of their own.
        """
        leaves = jax.tree.leaves(updates)
        if not self.names and not any(map(varying, [*leaves, *losses.values()])):
            return None
        shards = self.shards(updates, params) if self.names else [frozenset[Any]()] * len(leaves)
        homes = [
            varying(p) for p in (leaves if params is None else trees.match(updates, params, ("updates", "params")))
        ]
        numbers: frozenset[Any] = frozenset().union(*(varying(value) for value in losses.values()))
        for name, level in grads.items():
            for (path, _), g, home, own in zip(_paths(updates, updates), level, homes, shards, strict=True):
                if more := varying(g) - home - own:
                    raise ValueError(
                        f"{name}{path} differs over {words(more)}, and the parameter does not: average it there, as "
                        "jax.lax.pmean(grads, axis_name) or tiebreak.optax.measure(…, axis_name=…) does"
                    )
                numbers |= varying(g)
        apart = numbers - set(self.names)
        common = varying(state).intersection(*homes)
        if apart - common:
            missing = words(apart - common)
            raise ValueError(
                f"gradients or losses differ over {missing}, and so would the multiplier, where a parameter or the "
                f"state does not: give dynamic_barrier(…, axis_name={words((apart - common) | set(self.names))})"
            )
        if not self.names:
            return None  # a run of its own in every place
        taking = [
            tuple(sorted(s, key=str)) for s, leaf in zip(shards, leaves, strict=True) if trees.differentiable(leaf)
        ]
        return Spread(self.names, tuple(taking), all(tracked(axis) for axis in self.names))

    def averaged(self, grads: Tree, params: Tree) -> Tree:
        """Gradients of the mean loss, from each device's own where types do not say what is summed already.

        There JAX differentiates the sum of all devices' losses by what each of them holds.
        """
        loose = [axis for axis in self.names if not tracked(axis)]
        if not loose:
            return grads
        leaves, structure = jax.tree.flatten(grads)
        found = list(leaves)
        shards = [tuple(sorted(own & set(loose), key=str)) for own in self.shards(grads, params)]
        for own in sorted(set(shards), key=str):  # in one order in all processes
            mine = [i for i, other in enumerate(shards) if other == own]
            copied, parts = tuple(axis for axis in loose if axis not in own), [leaves[i] for i in mine]
            parts = summed(parts, copied) if copied else parts
            for i, part in zip(mine, parts, strict=True):
                found[i] = part / size(loose)
        return jax.tree.unflatten(structure, found)

    def mean(self, values: Sequence[Any]) -> list[Any]:
        """The mean over all devices, of several numbers in one collective."""
        if not self.names or not values:
            return list(values)
        whole: list[Any] = summed([vary(jnp.asarray(v), self.names) for v in values], self.names)
        return [total / size(self.names) for total in whole]

    def own(self, params: Tree) -> list[Any]:
        """The axes along which there is a run of its own in every place: what else the parameters differ over."""
        found: frozenset[Any] = frozenset().union(*(varying(p) for p in jax.tree.leaves(params)))
        return sorted(found - set(self.names), key=str)


def axes_named(axis_name: Any, param_specs: Any = None) -> Axes:
    """Axes from the words of a user, checked.

    Examples
    --------
    >>> from jax.sharding import PartitionSpec
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
        raise ValueError(f"axis_name={axis_name!r} must be the name of a mapped axis, or several names, each once")
    for spec in jax.tree.leaves(param_specs, is_leaf=is_spec):
        if not is_spec(spec):
            raise ValueError(f"param_specs has {spec!r}; it must be a PartitionSpec, or a tree of them")
        for axis in spec_axes(spec):
            if axis not in names:
                raise ValueError(f"param_specs names the axis {axis!r}; axis_name={axis_name!r} must name it, too")
    return Axes(names, param_specs)


def _paths(tree: Tree, order: Tree) -> list[tuple[str, Any]]:
    """The leaves of a tree and what they are called, in the order of another."""
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(order)]
    return list(zip(paths, trees.match(order, tree, ("updates", "params")), strict=True))
