"""The handful of floats that a rank adds to the sum of a step, and what can be read from that sum."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tiebreak.torch.kernels.foreach import accumulation_dtype
from tiebreak.torch.losses import loss_values

NAMES = ("upper", "lower", "reference")  # of losses
_APART = 1e-5  # replicas whose sums differ by more, relatively, are none: rounding is far below, wrong gradients above

_EACH = 0.01  # and single replicas, by the logarithms of their squared norms
_OTHER = 1e-8  # and fingerprints, in float64


class Measured(NamedTuple):
    """What a step measured: on one rank, or on all together.

    Attributes
    ----------
    own, seen : tensor
        Inner products of the gradients in the direction, and as the rule sees them, of shape (3,); of the pieces of
        one rank by kind, of shape (kinds, 3).
    losses : dict
        By name; None where nobody gave one.
    twin : tensor or None
        ‖∇g‖² of the twin; of one rank, by kind.
    """

    own: Tensor
    seen: Tensor
    losses: dict[str, Any]
    twin: Tensor | None

    def of_one_rank(self) -> "Measured":
        """What one rank measured that has no others beside it."""
        own = self.own[0]
        return self._replace(
            own=own, seen=own if self.seen is self.own else self.seen[0]
        )

    def waited(self, guard: Any) -> "Measured":
        """The products on the host, which has to know; it makes the other numbers sooner than a device starts to."""
        own, seen = self.own, self.seen
        if seen is own:
            own = seen = guard.wait(own)
        else:
            own, seen = guard.wait(torch.cat([own, seen])).split(len(own))
        return self._replace(own=own, seen=seen)


class Shares(NamedTuple):
    """What this rank's numbers count in the sums over all ranks.

    Attributes
    ----------
    weights : tensor
        Of shape (2, kinds). With the first row the products of all pieces add up, each piece counted once; with the
        second those of equal pieces add up to 0.
    sign : float
        The second row, for what every rank should have alike.
    given : dict
        Whether any rank gave this loss in the first step.
    alike : bool
        Whether no rank has parameters for itself.
    """

    weights: Tensor
    sign: float
    given: dict[str, bool]
    alike: bool


@dataclass(frozen=True)
class Message:
    """The floats of one step.

    Parameters
    ----------
    shares : Shares
    measured : Measured
        On this rank.
    noise : tensor or None
        The sums of :class:`~tiebreak.torch.noise.Noise`, of shape (kinds, 3).
    present : tuple of bool
        Whether there are gradients of the upper and of the lower level here.
    forgot : bool
        Whether this rank had no block of one level.
    spoiled : bool
        Whether this step must not be made: then no product is finite.
    each : tensor or None
        A number in which every replica counts as much, however small it is.
    touched : tensor or None
        Whether gradients were changed after their block.
    count : int
        The step.
    fingerprint : float
        Of what every rank must have alike, and may be changed between two steps.
    found, inverse_scale : tensor or None
        What a gradient scaler found, and 1 over its scale.
    """

    shares: Shares
    measured: Measured
    noise: Tensor | None
    present: tuple[bool, ...]
    forgot: bool
    spoiled: bool
    each: Tensor | None
    touched: Tensor | None
    count: int
    fingerprint: float
    found: Tensor | None
    inverse_scale: Tensor | None

    def vector(self) -> Tensor:
        """This rank's floats."""
        own, seen, losses, twin = self.measured
        losses = loss_values(losses)
        home, kinds = own.device, self.shares.weights.shape[1]
        columns = [own]
        columns += [] if seen is own else [seen]
        columns += [] if self.noise is None else [self.noise]
        columns += [] if twin is None else [twin.reshape(kinds, 1)]
        table = (
            columns[0]
            if len(columns) == 1
            else torch.cat([column.to(own) for column in columns], 1)
        )
        both = self.shares.weights.to(home, accumulation_dtype(home)) @ table.to(
            accumulation_dtype(home)
        )
        both = both * torch.nan if self.spoiled else both
        scale = (
            None
            if self.inverse_scale is None
            else self.inverse_scale.to(both).log2() * self.shares.sign
        )
        each = None if self.each is None else self.each.to(both) * self.shares.sign
        values = [losses[name] for name in NAMES] + [
            self.found,
            scale,
            self.touched,
            each,
        ]
        # Tensors stay where they are; what the host knows goes to the device in one piece, and nobody waits.
        known = [
            float(v) if v is not None and not isinstance(v, Tensor) else 0.0
            for v in values
        ]
        known += [float(losses[name] is not None) for name in NAMES] + [
            float(here) for here in self.present
        ]
        known += [
            self.shares.sign * number for number in (self.count, self.fingerprint)
        ] + [float(self.forgot)]
        facts = torch.tensor(known, dtype=both.dtype, pin_memory=home.type == "cuda")
        facts = facts.to(home, non_blocking=True)
        for i, value in enumerate(values):
            if isinstance(value, Tensor):
                facts[i].copy_(value.reshape(()))
        return torch.cat([both.reshape(-1), facts])

    def read(
        self, total: Tensor
    ) -> tuple[Measured, Tensor | None, Tensor | None, Tensor]:
        """From the sum over all ranks: what they measured, the noise, what a scaler found, and what is doubtful."""
        sums, signs = total[:-_FACTS].reshape(2, -1).unbind()
        facts = total[-_FACTS:]
        values, given = facts[:3], facts[7:10]
        found, scale, touched, each = facts[3:7].unbind()
        *present, count, fingerprint, forgot = facts[10:].unbind()
        losses = {
            name: value / n
            if self.shares.given[name] or self.measured.losses[name] is not None
            else None
            for name, value, n in zip(NAMES, values, given, strict=True)
        }
        own = seen = sums[:3]
        apart = _apart(own, signs[:3]) | (each.abs() > _EACH)
        if (
            self.measured.seen is not self.measured.own
        ):  # an average, which may have been loaded differently
            seen = sums[3:6]
            apart = apart | _apart(seen, signs[3:6])
        twin = None
        if self.measured.twin is not None:
            twin = sums[-1]
            apart = apart | (signs[-1].abs() > _APART * twin)
        noise = None
        if (
            self.noise is not None
        ):  # of no use if micro-batches have other weights or gradients on other ranks
            noise = sums[-3:]
            uneven = (signs[-3:].abs() > _APART * noise.abs()).any()
            noise = torch.where(uneven, torch.nan, noise)
        other = _OTHER if total.dtype == torch.float64 else 1e-4
        missing = [there < 0.5 for there in present]
        doubts = [
            apart,
            *missing,
            count.abs() > 1e-3,
            fingerprint.abs() > other,
            scale.abs() > 1e-3,
            touched > 0,
            forgot > 0,
        ]
        return (
            Measured(own, seen, losses, twin),
            noise,
            None if self.found is None else found > 0,
            torch.stack(doubts),
        )


def _apart(products: Tensor, signs: Tensor) -> Tensor:
    """Whether the sums that are 0 over equal replicas are far from it, beside the products."""
    _, gg, ff = products.unbind()
    size = torch.stack([(gg * ff).sqrt(), gg, ff])
    return (signs.abs() > _APART * size).any()


# Three losses, what a scaler found, its scale, changed gradients, each replica; three truths for the losses, two for
# the levels, the step, the fingerprint, and a level forgotten.
_FACTS = 15
ONE_LEVEL = (
    "those of the other level were not. To clip the direction give max_norm=…, or call opt.combine() first; to change "
    "one level do it inside its block; to unscale call opt.unscale_(scaler)"
)


def refuse(doubts: list[bool], late: bool = False) -> None:
    """Raise if the ranks do not fit together; all of them have the same doubts. `late` is one step too late."""
    apart, no_upper, no_lower, count, other, scale, touched, forgot = doubts
    if forgot:
        raise RuntimeError(
            "a rank had no upper gradients or no lower gradients in this step: put the backward passes in `with "
            "opt.upper():` and `with opt.lower():`, on every rank"
        )
    for level, missing in (("upper", no_upper), ("lower", no_lower)):
        if missing:
            raise RuntimeError(
                f"no {level} gradients on any rank: put loss.backward() inside `with opt.{level}():`, of a loss that "
                "depends on the parameters, and set no gradients to None before the step"
            )
    if count:
        raise RuntimeError(
            "the ranks are at different steps: load the same state on each, or on none"
        )
    if other:
        raise RuntimeError(
            "the ranks have different states: one changed its tolerance or its learning rate and others did not, or "
            "they loaded different states. Do the same on each"
        )
    if scale:
        raise RuntimeError(
            "the gradient scaler has another scale on every rank: sharded parameters need the scaler of their wrapper, "
            "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler for FullyShardedDataParallel"
        )
    if touched:
        raise RuntimeError(
            f"the gradients of a level were changed after its block, {ONE_LEVEL}"
        )
    if apart:
        raise RuntimeError(
            "the ranks have different gradients of the same parameters, or of a twin's; "
            f"{'a step was made with them' if late else 'the step was not made'}. DistributedDataParallel averages "
            "forward and backward of one level, then forward and backward of the other: not two forwards before the "
            "first backward, nor two backwards of one forward. The last micro-batch of each level belongs outside "
            "no_sync(). What no wrapper averages, average yourself; name "
            "parameters that each rank has for itself in sharded=…"
        )
