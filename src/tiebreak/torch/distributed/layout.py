"""How the parameters lie over the ranks, as their wrappers say: DistributedDataParallel, FSDP, DTensor, or the user.

Whatever the parallelism, a rank holds a *piece* of each parameter, and so may others: of a replica the piece is all of
it. That is all that sums over the ranks need: an inner product is the sum over the pieces, each counted once.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tiebreak.torch.buffers import parts_of


def several_ranks() -> bool:
    """Whether there are other ranks at all."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_dtensor(tensor: Any) -> bool:
    """Whether this is a piece of a tensor that knows of the others."""
    return hasattr(tensor, "device_mesh")  # torch without distributed has no such class


def local(tensor: Any) -> Any:
    """This rank's piece in memory: what is written there is written in the tensor."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def whole(tensor: Any) -> Any:
    """All of it on every rank: for numbers."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def placed(grad: Any, parameter: Any) -> Any:
    """The gradient over the ranks as its parameter is: of each piece there is then a piece of the gradient here."""
    if not is_dtensor(grad) or grad.placements == parameter.placements:
        return grad
    with torch.no_grad():
        return grad.redistribute(parameter.device_mesh, parameter.placements)


class Kind(NamedTuple):
    """Parameters that lie over the ranks in one way.

    Attributes
    ----------
    name : tuple
        The same on every rank that holds a piece of them.
    piece : tuple
        Which piece is here: the same on the ranks that hold the same.
    own : bool
        Whether the user said that other ranks hold other parameters.
    """

    name: tuple[Any, ...]
    piece: tuple[int, ...]
    own: bool = False


class Wrappers(NamedTuple):
    """The wrappers among the modules of `model=`: DistributedDataParallel, FSDP of both kinds."""

    ddp: list[Any]
    flat: list[Any]  # FullyShardedDataParallel
    sharded: list[Any]  # what fully_shard made of modules


class Layout(NamedTuple):
    """Of which group the ranks are, and of which kind each parameter is; no group where this process is alone."""

    group: Any
    kinds: list[Kind]
    of: dict[Tensor, int]


def wrappers(modules: Sequence[nn.Module]) -> Wrappers:
    """Return the wrappers among these modules and their parts."""
    found = Wrappers([], [], [])
    if not (
        dist.is_available() and dist.is_initialized()
    ):  # one rank may be wrapped, too
        return found
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    for module in parts_of(modules):
        if isinstance(module, DistributedDataParallel):
            found.ddp.append(module)
        elif isinstance(module, FullyShardedDataParallel):
            found.flat.append(module)
        elif any(
            base.__name__ == "FSDPModule" for base in type(module).__mro__
        ):  # public since torch 2.6
            found.sharded.append(module)
    return found


def covered(
    parameters: Sequence[Tensor], modules: Sequence[nn.Module], around: Wrappers
) -> None:
    """Raise where a parameter was cut over the ranks, and `modules` do not contain what did it."""
    flat = _flat(around.flat)
    if any(getattr(p, "_fsdp_flattened", False) and p not in flat for p in parameters):
        raise RuntimeError(
            "a parameter belongs to a FullyShardedDataParallel that model= does not contain: give the wrapped model, "
            "DynamicBarrier(base, …, model=model)"
        )
    if any(map(is_dtensor, parameters)):
        known = {p for module in modules for p in module.parameters()}.union(
            *map(_sharded, around.sharded)
        )
        if not known.issuperset(filter(is_dtensor, parameters)):
            raise RuntimeError(
                "a parameter is a DTensor of no module in model=: give the model, DynamicBarrier(base, …, model=model)"
            )


def _sharded(module: Any) -> set[Tensor]:
    """The parameters of a module that fully_shard has made; while they are gathered, others stand in their place."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [
        state._fsdp_param_group
    ]  # one until torch 2.10
    hidden = {
        piece.sharded_param
        for group in groups
        if group is not None
        for piece in group.fsdp_params
    }
    return hidden | set(module.parameters())


def layout(
    parameters: Sequence[Tensor], group: Any, sharded: Any, around: Wrappers
) -> Layout:
    """How the parameters lie; `group` and `sharded` as the user gave them."""
    if not several_ranks():
        return Layout(None, [Kind(("here",), ())], dict.fromkeys(parameters, 0))
    flat = _flat(around.flat)
    if group is False and any(
        is_dtensor(p) or getattr(p, "_fsdp_flattened", False) for p in parameters
    ):
        raise ValueError(
            "process_group=False, and FSDP or DTensor has put the parameters on several ranks"
        )
    apart = _apart(parameters, group, sharded)
    kinds: list[Kind] = []
    of: dict[Tensor, int] = {}
    pairs = [
        (m.process_group, getattr(m, "_inter_node_pg", None))
        for m in (*around.ddp, *around.flat)
    ]
    groups = [
        tuple(dist.get_process_group_ranks(g))
        for pair in pairs
        for g in pair
        if g is not None
    ]
    meshes: dict[tuple[int, ...], list[list[int]]] = {}
    for p in parameters:
        name, piece, ranks = _of_one(p, flat, meshes)
        groups += [ranks] if ranks else []
        if p in apart:
            over = apart[p]
            name, piece = (
                ("own", dist.get_world_size(over), *name),
                (dist.get_rank(over), *piece),
            )
            groups.append(tuple(dist.get_process_group_ranks(over)))
        kind = Kind(name, piece, p in apart)
        if kind not in kinds:
            kinds.append(kind)
        of[p] = kinds.index(kind)
    if group is False:
        return Layout(None, kinds, of)
    return Layout(_whole(group, set(groups)), kinds, of)


def _of_one(
    p: Tensor,
    flat: Mapping[Tensor, Any],
    meshes: dict[tuple[int, ...], list[list[int]]],
) -> tuple[tuple[Any, ...], tuple[int, ...], tuple[int, ...]]:
    """The name and piece of a parameter, and the ranks that its wrapper names; `meshes` are those met before."""
    if is_dtensor(p):
        mesh, placements = p.device_mesh, p.placements  # type: ignore[attr-defined]  # a DTensor has them
        if any(placement.is_partial() for placement in placements):
            raise ValueError(
                f"a parameter of shape {tuple(p.shape)} is a DTensor with a Partial placement: only gradients may be"
            )
        cut = [
            i for i, placement in enumerate(placements) if not placement.is_replicate()
        ]
        here = mesh.get_coordinate()
        ranks = mesh.mesh.flatten().tolist()
        alike = meshes.setdefault(
            tuple(mesh.shape), []
        )  # other ranks have these meshes in the same order
        alike += [] if ranks in alike else [ranks]
        name = ("DTensor", tuple(mesh.shape), alike.index(ranks), tuple(cut))
        return name, tuple(here[i] for i in cut), tuple(ranks)
    if flat.get(p) is not None:
        over = flat[p]
        return ("FSDP", dist.get_world_size(over)), (dist.get_rank(over),), ()
    return ("replica",), (), ()


def _flat(modules: Iterable[Any]) -> dict[Tensor, Any]:
    """The parameters of FullyShardedDataParallel, each with the group whose ranks have the pieces, None if all have."""
    found: dict[Tensor, Any] = {}
    for module in modules:
        handle = getattr(module, "_handle", None)
        if handle is not None:
            flat, over = (
                handle.flat_param,
                handle.process_group if handle.uses_sharded_strategy else None,
            )
            found |= dict.fromkeys([flat, *(flat._params or ())], over)
    return found


def _apart(parameters: Sequence[Tensor], group: Any, sharded: Any) -> dict[Tensor, Any]:
    """The parameters of which each rank of a group has others, as the user said, each with that group."""
    if sharded is None or sharded is False:
        return {}
    given = sharded if isinstance(sharded, Mapping) else {group: sharded}
    known, found = set(parameters), dict[Tensor, Any]()
    for over, chosen in given.items():
        mine = list(parameters) if chosen is True else list(chosen)
        if not all(isinstance(p, Tensor) and p in known for p in mine):
            raise ValueError("sharded=… names a parameter that is not in the optimizer")
        found |= dict.fromkeys(mine, over)
    return found


def _whole(group: Any, groups: set[tuple[int, ...]]) -> Any:
    """The group of all ranks that take part in a step."""
    world, everybody = dist.group.WORLD, set(range(dist.get_world_size()))
    if group is not None:
        members = set(dist.get_process_group_ranks(group))
        outside = {rank for ranks in groups for rank in ranks} - members
        if outside:
            raise ValueError(
                f"process_group= has the ranks {sorted(members)}, and parameters lie on rank {min(outside)}, too: give "
                "the group of all ranks that hold a part of the model or of the batch"
            )
        return group
    if not groups:
        raise RuntimeError(
            f"{len(everybody)} processes run, and no DistributedDataParallel, FSDP or DTensor in model= says how the "
            "parameters lie over them: give the wrapped model, model=DistributedDataParallel(…), "
            "process_group=torch.distributed.group.WORLD where all hold the same (replicas), sharded=… besides where "
            "each holds others, or process_group=False where this process trains alone"
        )
    if set().union(*groups) != everybody and math.prod(
        len(ranks) for ranks in groups
    ) != len(everybody):
        seen = sorted(set().union(*groups))
        raise RuntimeError(
            f"the parameters lie on the ranks {seen} of {len(everybody)}, and nothing says what the others hold: give "
            "process_group=, the group of all ranks that hold a part of the model or of the batch (sharded=… besides "
            "where those outside hold other parameters, as in a pipeline)"
        )
    return world


def flattened(parameters: Sequence[Tensor], around: Wrappers) -> frozenset[Tensor]:
    """Parameters that are parts of a flat one, which must find no gradient of an earlier block; or a refusal."""
    if any(module.gradient_as_bucket_view for module in around.ddp):
        raise ValueError(
            "DistributedDataParallel(gradient_as_bucket_view=True) has one place for the gradients of both levels: "
            "leave it at False"
        )
    for hook, state in (
        pair for module in around.ddp for pair in getattr(module, "_comm_hooks", ())
    ):
        if state is not None and not isinstance(state, dist.ProcessGroup):
            raise ValueError(
                f"DistributedDataParallel.register_comm_hook with a {type(state).__name__} for "
                f"{getattr(hook, '__name__', hook)}: what a hook remembers of one level's gradients it would add to "
                "the other's. Use hooks without a state, such as fp16_compress_hook"
            )
    if any(module.cpu_offload.offload_params for module in around.flat):
        raise ValueError(
            "FullyShardedDataParallel(cpu_offload=CPUOffload(offload_params=True)) has one place for the gradients of "
            "both levels: use fully_shard with CPUOffloadPolicy()"
        )
    return frozenset(_flat(around.flat).keys() & set(parameters))


def held(around: Wrappers) -> bool:
    """Whether FSDP has gradients of an earlier pass that it has not put into ``.grad`` yet."""
    for module in around.flat:
        flat = getattr(getattr(module, "_handle", None), "flat_param", None)
        if (
            flat is not None
            and flat.grad is not None
            and flat.grad.numel() != flat._sharded_size.numel()
        ):
            return True
    for module in around.sharded:
        group = getattr(module._get_fsdp_state(), "_fsdp_param_group", None)
        if group is None:
            continue
        if getattr(group, "_partial_reduce_output", None) is not None:
            return True
        for one in group.fsdp_params:
            unsharded = getattr(one, "_unsharded_param", None)
            if any(
                getattr(*place, None) is not None
                for place in ((one, "unsharded_accumulated_grad"), (unsharded, "grad"))
            ):
                return True
    return False
