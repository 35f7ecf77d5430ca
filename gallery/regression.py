"""Over-parametrised regression: among all models that fit the training rows, one that suits the validation rows.

The problem of :mod:`gallery.problems.regression` for training loops: the same rows, a linear model, batches of rows.
"""

from collections.abc import Iterable, Mapping
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor, nn

from gallery.batches import Epochs
from gallery.example import Example, Metric, Size, Task
from gallery.needs import Missing
from gallery.problems.regression import RegressionData, Rows, Values, regression_data
from gallery.rates import cosine

__all__ = ["EXAMPLE", "task_of"]

_BATCHES = (44, 61)  # half of the training rows, a quarter of the validation rows


@cache
def _data(seed: int) -> RegressionData:
    try:
        return regression_data(seed)
    except ModuleNotFoundError as error:
        raise Missing(str(error)) from None


def task_of(
    data: RegressionData,
    *,
    steps: int,
    seed: int,
    device: str = "cpu",
    rate: float = 8.0,
) -> Task:
    """A linear model from 0; SGD with momentum, a learning rate that falls by a cosine. float64: gaps may be small."""
    solution = data.solution()
    model = nn.Linear(len(solution), 1, bias=False, dtype=torch.float64, device=device)
    nn.init.zeros_(model.weight)
    parts = [_on(rows, device) for rows in (data.train, data.validation)]
    epochs = [
        Epochs(len(y), n, seed * 2 + i, device)
        for i, ((_, y), n) in enumerate(zip(parts, _BATCHES, strict=True))
    ]

    def loss(rows: tuple[Tensor, Tensor], model: nn.Module, batch: Tensor) -> Tensor:
        inputs, targets = rows
        rest: Tensor = model(inputs[batch]).squeeze(1) - targets[batch]
        return 0.5 * rest.square().mean()

    @torch.no_grad()
    def losses(model: nn.Module) -> tuple[float, float]:
        x = _weights(model)
        return data.train.loss(x), data.validation.loss(x)

    def base(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9)

    return Task(
        model, partial(loss, parts[0]), partial(loss, parts[1]), lambda step: (epochs[0](step), epochs[1](step)), base,
        steps, losses, partial(_metrics, data, solution), cosine,
    )  # fmt: skip


def _on(rows: Rows, device: str) -> tuple[Tensor, Tensor]:
    return torch.tensor(rows.features, device=device), torch.tensor(
        rows.targets, device=device
    )


def _weights(model: nn.Module) -> Values:
    return next(model.parameters()).detach().squeeze(0).cpu().numpy()


def _metrics(
    data: RegressionData, solution: Values, model: nn.Module
) -> Mapping[str, float]:
    x = _weights(model)
    return {
        "test loss": data.test.loss(x),
        "validation loss": data.validation.loss(x),
        "training loss": data.train.loss(x),
        "distance to the solution": float(
            np.linalg.norm(x - solution) / np.linalg.norm(solution)
        ),
    }


def _build(size: Size, seed: int, device: str) -> Task:
    return task_of(
        _data(seed), steps=4000 if size == "full" else 1000, seed=seed, device=device
    )


EXAMPLE = Example(
    name="regression",
    title="Over-parametrised regression",
    question="Among all exact fits of the training rows, does the one that suits the validation rows test better?",
    build=_build,
    metrics=(
        Metric("test loss", "lower", "Half the mean squared error on unseen rows; predicting the mean has 0.5."),
        Metric("validation loss", "lower", "The upper loss, on its own rows."),
        Metric("training loss", "lower", "The lower loss; 0 can be had."),
        Metric("distance to the solution", "lower", "From the exact solution, as a share of its norm."),
    ),
    tolerance=0.005,  # a hundredth of what predicting the mean leaves
    reference="twin",
    limits="One small data set (442 rows) as random cosines; who wins within the tolerance is not nearest to the exact "
    "solution, which tests worse than fits that are less exact.",
)  # fmt: skip
