"""How much of ‖∇g‖² is noise, from micro-batches: free where several make up a step.

The sum of j micro-batch gradients has E‖S_j‖² = j²‖μ‖² + jν². The squared norms of the growing sum, one after each
micro-batch, tell signal from noise without any micro-batch being kept: ‖S_j‖²/j is a line in j, its slope the signal.
"""

import warnings
from typing import Any

import torch
from torch import Tensor

__all__ = ["Noise"]

_LOOK = 50  # steps between two looks where only a warning is at stake: looking costs a pass over ∇g and a sync
_HIGH = 0.5


class Noise:
    """The share of noise in gg, averaged over steps.

    Parameters
    ----------
    correct : bool
        Whether the share is needed at every step, to take it out of gg.
    """

    def __init__(self, correct: bool) -> None:
        self.correct, self.warned = correct, False
        self.squares: list[Tensor] = []
        self.state: dict[str, Any] = {"noise": None, "total": None}

    def wanted(self, count: int) -> bool:
        """Whether to measure in this step."""
        return self.correct or (not self.warned and count % _LOOK == 0)

    def add(self, square: Tensor) -> None:
        """The squared norm of the lower gradient, as far as it has accumulated."""
        self.squares.append(square)

    def share(self) -> Tensor | None:
        """ν²/gg for the sum of this step's micro-batches; None until a step had two or more."""
        n, squares = len(self.squares), self.squares
        self.squares = []
        if n >= 2:
            y = torch.stack([square / j for j, square in enumerate(squares, 1)])
            j = torch.arange(1, n + 1, device=y.device, dtype=y.dtype)
            slope = ((j - j.mean()) * (y - y.mean())).sum() / (j - j.mean()).square().sum()
            noise = n * (y.mean() - slope * j.mean())
            for name, value in (("noise", noise), ("total", squares[-1])):
                before = self.state[name]
                now = value if before is None else 0.9 * before.to(value.device) + 0.1 * value
                self.state[name] = torch.where(torch.isfinite(value), now, now if before is None else before)
        if self.state["total"] is None:
            return None
        share: Tensor = self.state["noise"] / self.state["total"]
        return share.clamp(0.0, 1.0)

    def warn(self, share: Tensor | None, alone: bool) -> None:
        """Say once that the multiplier is drowning, if it stands alone against the noise."""
        if self.warned or not alone or share is None:
            return
        value = float(share)
        if value > _HIGH:
            self.warned = True
            warnings.warn(
                f"noise makes up {value:.0%} of the lower gradient's squared norm: the multiplier falls towards the "
                "fixed weight `barrier`. Use estimator='average', correct_noise=True, tolerance=… or larger batches.",
                RuntimeWarning,
                stacklevel=5,
            )
