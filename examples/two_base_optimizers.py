"""Two base optimizers for one model
=================================

Run it: ``python examples/two_base_optimizers.py``.

Muon for the matrices and AdamW for everything else, as one base of one
:class:`~tiebreak.torch.DynamicBarrier`. Two wrappers would each compare with a
model of which the other one trains a half.
"""

import torch

from tiebreak.torch import DynamicBarrier


class Both(torch.optim.Optimizer):
    """Several optimizers of different parameters as one, with one state."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def __getstate__(self) -> dict:
        return vars(self).copy()

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        """Let the parts use this optimizer's groups and state, which checkpoints hold."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state

    def step(self, closure: None = None) -> None:
        for part in self.parts:
            part.step()


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    base = Both(
        torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(vectors, lr=0.01)
    )
    barrier = DynamicBarrier(base, tolerance=0.01, reference="twin", model=model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(base, 200)
    inputs = torch.randn(256, 8)
    targets = inputs[:, :1] * inputs[:, 1:2]

    def fit() -> torch.Tensor:
        return (model(inputs) - targets).square().mean()

    def size() -> torch.Tensor:
        return sum(p.abs().sum() for p in model.parameters())

    for _ in range(200):
        info = barrier.step(lower=fit, upper=size)
        schedule.step()
    print(f"excess {info.excess:.2f} in tolerances, at most 1 is inside")
    print(f"{len(base.state)} parameters have a state, of both base optimizers")
    print(barrier.finish(lower=fit, upper=size))


if __name__ == "__main__":
    main()
