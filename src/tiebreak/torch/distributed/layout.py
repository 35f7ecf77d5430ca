"""How the parameters lie over the ranks: by DistributedDataParallel, FSDP, DTensor, or as the user says.

Each rank holds one *piece* of a parameter, and other ranks may hold the same piece; the piece of a replica is the
whole parameter. An inner product over all ranks is the sum over the pieces, each counted once.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

Group = dist.ProcessGroup | None
# By group, the parameters with different values on each rank; True for all parameters.
Sharded = Mapping[Group, Literal[True] | list[Tensor]]
AnyTensor = TypeVar("AnyTensor", Tensor, Tensor | None)


class LayoutKind(NamedTuple):
    """Parameters that lie over the ranks in the same way.

    Attributes
    ----------
    name : tuple
        Equal on all ranks that hold a piece of these parameters.
    piece : tuple
        Which piece this rank holds; equal on ranks that hold the same piece.
    private : bool
        Whether the user said that other ranks hold other parameters.
    """

    name: tuple[Any, ...]
    piece: tuple[int, ...]
    private: bool = False


REPLICA = LayoutKind(("replica",), ())


class Wrappers(NamedTuple):
    """The modules of `model=` that distribute parameters.

    Attributes
    ----------
    ddp : list
        Of DistributedDataParallel.
    flat : list
        Of FullyShardedDataParallel.
    sharded : list
        Modules that ``fully_shard`` has changed.
    """

    ddp: list[Any]
    flat: list[Any]
    sharded: list[Any]


class Layout(NamedTuple):
    """The group of ranks, None if this process is alone, and the kind of each parameter as an index into `kinds`."""

    group: Group
    kinds: list[LayoutKind]
    kind_of: dict[Tensor, int]


def several_ranks() -> bool:
    """Return whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_dtensor(tensor: Tensor | None) -> "TypeGuard[DTensor]":
    """Return whether a tensor is a DTensor; torch without distributed lacks that class."""
    return hasattr(tensor, "device_mesh")


def local_tensor(tensor: AnyTensor) -> AnyTensor:
    """Return this rank's piece, which shares its memory with the tensor."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the whole tensor, on every rank."""
    if is_dtensor(tensor):
        return tensor.full_tensor()
    return tensor


def redistribute_like(grad: Tensor, parameter: Tensor) -> Tensor:
    """Distribute a gradient as its parameter, so that this rank holds the same piece of both."""
    if (
        not is_dtensor(grad)
        or not is_dtensor(parameter)
        or grad.placements == parameter.placements
    ):
        return grad
    with torch.no_grad():
        return grad.redistribute(parameter.device_mesh, parameter.placements)


def parts_of(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return all modules inside `modules`, each once; by identity, because a module may define a hash."""
    return list(
        {id(part): part for module in modules for part in module.modules()}.values()
    )


def find_wrappers(modules: Sequence[nn.Module]) -> Wrappers:
    """Return the wrappers among these modules and their parts."""
    if not (dist.is_available() and dist.is_initialized()):
        return Wrappers([], [], [])
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    parts = parts_of(modules)
    return Wrappers(
        ddp=[part for part in parts if isinstance(part, DistributedDataParallel)],
        flat=[part for part in parts if isinstance(part, FullyShardedDataParallel)],
        sharded=[part for part in parts if isinstance(part, FSDPModule)],
    )


def check_wrappers(wrappers: Wrappers) -> None:
    """Raise if a wrapper has options with which the gradients of both levels cannot be kept apart."""
    for module in wrappers.ddp:
        if module.gradient_as_bucket_view:
            raise ValueError(
                "DistributedDataParallel(gradient_as_bucket_view=True) has one place for the gradients of both levels: "
                "leave it at False"
            )
        for hook, state in module._comm_hooks:
            if state is not None and not isinstance(state, dist.ProcessGroup):
                raise ValueError(
                    f"DistributedDataParallel.register_comm_hook with a {type(state).__name__} for "
                    f"{getattr(hook, '__name__', hook)}: what a hook remembers of one level's gradients it would add to "
                    "the other's. Use hooks without a state, such as fp16_compress_hook"
                )
    if any(module.cpu_offload.offload_params for module in wrappers.flat):
        raise ValueError(
            "FullyShardedDataParallel(cpu_offload=CPUOffload(offload_params=True)) has one place for the gradients of "
            "both levels: use fully_shard with CPUOffloadPolicy()"
        )


def check_covered(
    parameters: Sequence[Tensor], modules: Sequence[nn.Module], wrappers: Wrappers
) -> None:
    """Raise if a parameter is distributed over the ranks by something that `modules` do not contain."""
    flat = flat_groups(wrappers)
    if any(_is_flattened(p) and p not in flat for p in parameters):
        raise RuntimeError(
            "a parameter belongs to a FullyShardedDataParallel that model= does not contain: give the wrapped model, "
            "DynamicBarrier(base, …, model=model)"
        )
    # While parameters are gathered, their module does not list the pieces.
    covered: set[Tensor] = set()
    for fsdp_group in _fsdp_groups(wrappers):
        covered.update(piece.sharded_param for piece in fsdp_group.fsdp_params)
    for module in modules:
        covered.update(module.parameters())
    if not covered.issuperset(filter(is_dtensor, parameters)):
        raise RuntimeError(
            "a parameter is a DTensor of no module in model=: give the model, DynamicBarrier(base, …, model=model)"
        )


def flat_groups(wrappers: Wrappers) -> dict[Tensor, Group]:
    """Return the parameters of FullyShardedDataParallel with the group that shares them; None for replicas."""
    groups: dict[Tensor, Group] = {}
    for module in wrappers.flat:
        handle = module._handle
        if handle is not None:
            if handle.uses_sharded_strategy:
                group = handle.process_group
            else:
                group = None
            flat = [handle.flat_param, *(handle.flat_param._params or ())]
            groups |= dict.fromkeys(flat, group)
    return groups


def find_layout(
    parameters: Sequence[Tensor],
    group: Group | Literal[False],
    sharded: Sharded,
    wrappers: Wrappers,
) -> Layout:
    """Return how the parameters lie over the ranks; `group` and `sharded` are what the user says."""
    several = several_ranks()
    if group is False or not several:
        if several and any(is_dtensor(p) or _is_flattened(p) for p in parameters):
            raise ValueError(
                "process_group=False, and FSDP or DTensor has put the parameters on several ranks"
            )
        return Layout(None, [REPLICA], dict.fromkeys(parameters, 0))
    memberships: set[tuple[int, ...]] = set()
    for module in (*wrappers.ddp, *wrappers.flat):
        for pg in (module.process_group, getattr(module, "_inter_node_pg", None)):
            if pg is not None:
                memberships.add(tuple(dist.get_process_group_ranks(pg)))
    private = {
        pg: set(parameters if chosen is True else chosen)
        for pg, chosen in sharded.items()
    }
    if not set[Tensor]().union(*private.values()) <= set(parameters):
        raise ValueError("sharded=… names a parameter that is not in the optimizer")
    flat = flat_groups(wrappers)
    meshes: dict[DeviceMesh, int] = {}
    kinds: dict[LayoutKind, int] = {}
    kind_of: dict[Tensor, int] = {}
    for p in parameters:
        kind = REPLICA
        if is_dtensor(p):
            kind = _dtensor_kind(p, meshes)
            memberships.add(tuple(p.device_mesh.mesh.flatten().tolist()))
        elif (pg := flat.get(p)) is not None:
            kind = LayoutKind(("FSDP", dist.get_world_size(pg)), (dist.get_rank(pg),))
        for pg, members in private.items():
            if p in members:
                name = ("private", dist.get_world_size(pg), *kind.name)
                kind = LayoutKind(name, (dist.get_rank(pg), *kind.piece), private=True)
                memberships.add(tuple(dist.get_process_group_ranks(pg)))
        kind_of[p] = kinds.setdefault(kind, len(kinds))
    return Layout(_find_group(group, memberships), list(kinds), kind_of)


def _dtensor_kind(parameter: "DTensor", meshes: dict["DeviceMesh", int]) -> LayoutKind:
    """Return the kind of a DTensor; `meshes` numbers those of earlier parameters, each shape by itself."""
    mesh = parameter.device_mesh
    placements = parameter.placements
    if any(placement.is_partial() for placement in placements):
        raise ValueError(
            f"a parameter of shape {tuple(parameter.shape)} is a DTensor with a Partial placement: only gradients may be"
        )
    # All ranks meet the meshes of a shape in the same order, although the meshes differ.
    number = sum(other.shape == mesh.shape for other in meshes)
    number = meshes.setdefault(mesh, number)
    split = tuple(i for i, place in enumerate(placements) if not place.is_replicate())
    return LayoutKind(
        ("DTensor", tuple(mesh.shape), number, split),
        tuple(mesh.get_local_rank(i) for i in split),
    )


def has_unsynchronized_gradients(wrappers: Wrappers) -> bool:
    """Return whether FSDP holds gradients of an earlier pass that are not in ``.grad`` yet."""
    for module in wrappers.flat:
        flat = module._flat_param
        grad = getattr(flat, "grad", None)
        if grad is not None and grad.numel() != flat._sharded_size.numel():
            return True
    for fsdp_group in _fsdp_groups(wrappers):
        pending = [fsdp_group._partial_reduce_output]
        for piece in fsdp_group.fsdp_params:
            unsharded = getattr(piece, "_unsharded_param", None)
            pending += [
                piece.unsharded_accumulated_grad,
                getattr(unsharded, "grad", None),
            ]
        if any(grad is not None for grad in pending):
            return True
    return False


def _is_flattened(parameter: Tensor) -> bool:
    return getattr(parameter, "_fsdp_flattened", False)


def _fsdp_groups(wrappers: Wrappers) -> Iterator[Any]:
    """Yield the groups of parameters that ``fully_shard`` communicates together."""
    for module in wrappers.sharded:
        yield from module._get_fsdp_state()._fsdp_param_groups


def _find_group(group: Group, memberships: set[tuple[int, ...]]) -> Group:
    """Return the group of all ranks that take part in a step; `memberships` are the ranks of its known subgroups."""
    covered = set[int]().union(*memberships)
    if group is not None:
        members = set(dist.get_process_group_ranks(group))
        if covered - members:
            raise ValueError(
                f"process_group= has the ranks {sorted(members)}, and parameters lie on rank {min(covered - members)}, "
                "too: give the group of all ranks that hold a part of the model or of the batch"
            )
        return group
    world_size = dist.get_world_size()
    if not memberships:
        raise RuntimeError(
            f"{world_size} processes run, and no DistributedDataParallel, FSDP or DTensor in model= says how the "
            "parameters lie over them: give the wrapped model, model=DistributedDataParallel(…), "
            "process_group=torch.distributed.group.WORLD where all hold the same (replicas), sharded=… besides where "
            "each holds others, or process_group=False where this process trains alone"
        )
    # The dimensions of a mesh, as subgroups, cover all ranks together.
    if len(covered) != world_size and math.prod(map(len, memberships)) != world_size:
        raise RuntimeError(
            f"the parameters lie on the ranks {sorted(covered)} of {world_size}, and nothing says what the others "
            "hold: give process_group=, the group of all ranks that hold a part of the model or of the batch "
            "(sharded=… besides where those outside hold other parameters, as in a pipeline)"
        )
    return dist.group.WORLD
