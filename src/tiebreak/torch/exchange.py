"""Other values in the place of a model's, around a pass: also where a wrapper has cut the model over ranks.

FSDP gathers the pieces of the parameters for a pass and may keep what it gathered for the next one, so it is told to
let go of it before and after. It knows its pieces by their memory: there, and in a DTensor, the numbers are exchanged;
elsewhere the tensors change places.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tiebreak.torch.layout import is_dtensor, local

__all__ = ["let_go", "swap"]


@torch.no_grad()
def swap(optimizer: Any, values: Mapping[Tensor, Tensor]) -> None:
    """Exchange the values of parameters with others; nothing gathered stays, and nothing is gathered."""
    let_go(optimizer)
    flat = {id(p) for p in values if getattr(p, "_fsdp_flattened", False) or type(p).__name__ == "FlatParameter"}
    for p, value in values.items():
        if is_dtensor(p) or id(p) in flat:
            here, there = local(p), local(value)
            kept = here.clone()
            here.copy_(there)
            there.copy_(kept)
        else:
            p.data, value.data = value.data, p.data
    torch.clear_autocast_cache()  # it may hold what was there before, in another precision


def let_go(optimizer: Any) -> None:
    """Have FSDP forget what it has gathered of the parameters: their values are about to change."""
    optimizer.ranks.look(list(optimizer.gradients.parameters()))
    around = optimizer.ranks.around
    for module in around.ddp:
        if getattr(module, "mixed_precision", None) is not None:
            raise RuntimeError(
                "DistributedDataParallel(mixed_precision=…) exchanges the parameters itself, and cannot be taken to a "
                'second point (a twin, a frozen copy, STORM): use torch.autocast, or reference="given"'
            )
    for module in around.sharded:
        module.reshard()
    for module in around.flat:
        handle = module._handle
        begun = handle is not None and hasattr(handle.flat_param, "_local_shard")  # since its first pass
        if begun and handle.uses_sharded_strategy:
            handle.reshard(True)


def clip(optimizer: Any, values: Sequence[Tensor], longest: float, square: Any, inverse_scale: Tensor | None) -> None:
    """Make the gradients of `values` no longer than `longest`; `square` is their squared norm over all ranks."""
    grads = [value.grad for value in values if value.grad is not None]
    if optimizer.ranks.alone and not any(map(is_dtensor, grads)):
        torch.nn.utils.clip_grad_norm_(values, longest)
        return
    norm = torch.as_tensor(square).sqrt() * (1 if inverse_scale is None else inverse_scale.to(torch.as_tensor(square)))
    factor = (longest / (norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_ has it
    for grad in grads:
        local(grad).mul_(factor.to(device=local(grad).device, dtype=local(grad).dtype))
