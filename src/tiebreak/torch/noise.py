"""How much of ‖∇g‖² is noise, from micro-batches: free where several make up a step.

The sum of micro-batch gradients of total weight W (their sizes, or shares) has E‖S‖² = W²‖μ‖² + Wν². The squared norms
of the growing sum, one after each micro-batch, tell signal from noise without any micro-batch being kept: ‖S‖²/W is a
line in W, its slope the signal.
"""

from typing import Any

import torch
from torch import Tensor

from tiebreak.torch.context import capturing, store
from tiebreak.torch.said import warn

_LOOK = 50  # steps between two looks: a look costs a pass over ∇g and a synchronisation
_HIGH = 0.5


class Noise:
    """The share of noise in gg, averaged over the steps that are looked at; warns if it is large."""

    def __init__(self) -> None:
        self.warned = False
        self.state: dict[str, Any] = {"noise": None, "total": None}
        self.begin()

    def begin(self) -> None:
        """A step begins: no micro-batch yet."""
        self._sums: list[Any] = (
            [0.0] * 5
        )  # of 1, w, w², y, wy: all that a line needs, however many micro-batches come
        self._weight = 0.0
        self._last: Tensor | None = None

    def due(self, count: int) -> bool:
        """Whether to measure in this step."""
        return not self.warned and count % _LOOK == 0

    def add(self, square: Tensor, weight: float) -> None:
        """The squared norm of the lower gradient as far as it has accumulated, after a micro-batch of this weight."""
        self._weight += weight
        y = square / self._weight  # E‖S‖² = W²‖μ‖² + Wν²
        terms = (1.0, self._weight, self._weight**2, y, self._weight * y)
        self._sums = [
            total + term for total, term in zip(self._sums, terms, strict=True)
        ]
        self._last = square

    def sums(self, kinds: int, like: Tensor) -> Tensor:
        """This rank's part of the sums of this step, by kind of parameters: of shape (kinds, 3)."""
        if self._last is None:
            return like.new_zeros(kinds, 3)
        return torch.stack([self._sums[3], self._sums[4], self._last], -1).to(like)

    def take(self, total: Tensor) -> None:
        """The sums over all ranks."""
        if self._last is not None:
            self._sums[3], self._sums[4], self._last = total.unbind()

    def share(self, inverse_scale: Tensor | None = None) -> Tensor | None:
        """ν²/gg for the sum of this step's micro-batches; None until a step had two or more.

        A scaler's scale moves: the averages are made without it.
        """
        n, w, ww, y, wy = self._sums
        spread = n * ww - w * w
        if n >= 2 and spread > 0 and self._last is not None:
            slope = (n * wy - w * y) / spread
            noise = self._weight * (y - slope * w) / n
            for name, value in (("noise", noise), ("total", self._last)):
                if inverse_scale is not None:
                    value = value * (inverse_scale**2).to(value)
                before = self.state[name]
                now = (
                    value
                    if before is None
                    else 0.9 * before.to(value.device) + 0.1 * value
                )
                last = (
                    torch.zeros_like(value)
                    if before is None
                    else before.to(value.device)
                )
                store(self.state, name, torch.where(torch.isfinite(value), now, last))
        self.begin()
        if self.state["total"] is None:
            return None
        share: Tensor = self.state["noise"] / (
            self.state["total"] + (self.state["total"] == 0)
        )
        return share.clamp(0.0, 1.0)

    def look(
        self, count: int, batch_alone: bool, inverse_scale: Tensor | None = None
    ) -> None:
        """Update the share if a look is due, and warn once if it is large and the rule sees the batch alone."""
        if not self.due(count) or (
            self._last is not None and capturing(self._last.device)
        ):
            return
        share = self.share(inverse_scale)
        if share is None or not batch_alone or float(share) <= _HIGH:
            return
        self.warned = True
        warn(
            f"noise makes up {float(share):.0%} of the lower gradient's squared norm: the multiplier falls towards the "
            "fixed weight `barrier`. Use tolerance=…, larger batches, or an average of the gradients: "
            "method.replace(estimator='average', momentum=0.1)"
        )
