"""Other values in the place of a model's, around a pass: also where a wrapper has cut the model over ranks.

FSDP gathers the pieces of the parameters for a pass and may keep what it gathered for the next one, so it is told to
let go of it before and after. It knows its pieces by their memory: there, and in a DTensor, the numbers are exchanged;
elsewhere the tensors change places.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tiebreak.torch.distributed.layout import is_dtensor, local

_SAME, _UNLIKE = (
    1e-3,
    0.1,
)  # losses as near as this are one; norms as far apart as this are two


@torch.no_grad()
def swap(optimizer: Any, values: Mapping[Tensor, Tensor]) -> None:
    """Exchange the values of parameters with others; nothing gathered stays, and nothing is gathered."""
    let_go(optimizer)
    flat = {
        id(p)
        for p in values
        if getattr(p, "_fsdp_flattened", False) or type(p).__name__ == "FlatParameter"
    }
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
                'second point (a twin, a frozen copy): use torch.autocast, or reference="given"'
            )
    for module in around.sharded:
        module.reshard()
    for module in around.flat:
        handle = module._handle
        begun = handle is not None and hasattr(
            handle.flat_param, "_local_shard"
        )  # since its first pass
        if begun and handle.uses_sharded_strategy:
            handle.reshard(True)


def clip(
    optimizer: Any,
    values: Sequence[Tensor],
    longest: float,
    square: Any,
    inverse_scale: Tensor | None,
) -> None:
    """Make the gradients of `values` no longer than `longest`; `square` is their squared norm over all ranks."""
    grads = [value.grad for value in values if value.grad is not None]
    if optimizer.ranks.alone and not any(map(is_dtensor, grads)):
        torch.nn.utils.clip_grad_norm_(values, longest)
        return
    norm = torch.as_tensor(square).sqrt() * (
        1 if inverse_scale is None else inverse_scale.to(torch.as_tensor(square))
    )
    factor = (longest / (norm + 1e-6)).clamp(
        max=1.0
    )  # as torch's clip_grad_norm_ has it
    for grad in grads:
        local(grad).mul_(factor.to(device=local(grad).device, dtype=local(grad).dtype))


def same_weight(
    optimizer: Any,
    gg: Any,
    square: Any,
    losses: Mapping[str, Any],
    inverse_scale: Tensor | None,
) -> None:
    """Raise if a twin that has not moved yet has another gradient than the model, on the same loss.

    `gg` and `square` are ‖∇g‖² of the model and, with a scaler's scale, of the twin. A loss divided in one of the two
    backward passes alone would train the twin otherwise than the model, and nothing else would show it.
    """
    steps = optimizer.memory.values["steps"]  # a tensor where a device has made some
    if isinstance(steps, Tensor) or steps != 0 or torch.compiler.is_compiling():
        return
    known = [losses[name] for name in ("lower_value", "reference")]
    one, two = (
        float(loss.value() if hasattr(loss, "value") else loss) for loss in known
    )
    mine, scale = (
        float(gg) ** 0.5,
        1.0 if inverse_scale is None else float(inverse_scale),
    )
    twin = float(square) ** 0.5 * scale
    if abs(one - two) <= _SAME * abs(one) and abs(twin - mine) > _UNLIKE * mine > 0:
        optimizer.forget()
        raise RuntimeError(
            f"the twin's gradient is {twin / mine:.3g} times as long as the model's, where both are still the same and "
            "have the same loss: give both backward passes the same weight, `(r / n).backward()` in `with "
            "opt.reference():` and `(g / n).backward()` in `with opt.lower(g, reference=r):`"
        )
