"""Dictionary learning that must not forget: old samples stay as well reconstructed as they are, new ones are learnt.

The problem of :mod:`gallery.problems.dictionary` for training loops: the same samples, free variables that stand for
atoms in the unit ball and coefficients in the 1-norm ball, batches of samples. The literature's CG-BiO, which works on
these sets themselves and with all samples at every step, is in the same table.
"""

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from gallery.batches import Epochs
from gallery.constrained import METHODS, left_over
from gallery.example import Example, Metric, OwnMethod, Size, Task
from gallery.problems.dictionary import (
    STRETCH,
    DictionaryData,
    Values,
    dictionary_data,
    recovery,
)
from gallery.rates import adam, cosine

__all__ = ["EXAMPLE", "Dictionary", "task_of"]

_SHARE = 0.5  # of all samples, in a batch


class Dictionary(nn.Module):
    """Atoms and coefficients as smooth functions of free variables; see :mod:`gallery.problems.dictionary`."""

    def __init__(self, data: DictionaryData) -> None:
        super().__init__()
        self.radius = data.radius
        self.u, self.v = (
            nn.Parameter(torch.tensor(part)) for part in data.split(data.x0)
        )

    def atoms(self) -> Tensor:
        """In the unit ball, a column each."""
        return _ball(self.u, (0,))

    def coefficients(self, samples: Tensor) -> Tensor:
        """Of these samples, in the 1-norm ball, a column each."""
        squares = _ball(STRETCH * self.v[..., samples], (0, 1)).square()
        return self.radius * (squares[0] - squares[1])

    def free(self) -> Values:
        """All variables as the solver has them."""
        return (
            torch.cat([self.u.detach().flatten(), self.v.detach().flatten()])
            .cpu()
            .numpy()
        )

    @torch.no_grad()
    def set(self, data: DictionaryData, x: Any) -> None:
        """Take these variables."""
        for parameter, part in zip((self.u, self.v), data.split(x), strict=True):
            parameter.copy_(torch.as_tensor(part))


def _ball(u: Tensor, axes: tuple[int, ...]) -> Tensor:
    return 2 * u / (1 + u.square().sum(dim=axes, keepdim=True))


def task_of(
    data: DictionaryData,
    *,
    steps: int,
    seed: int,
    device: str = "cpu",
    rate: float = 0.01,
) -> Task:
    """From the first stage's optimum; Adam, a learning rate that falls by a cosine."""
    model = Dictionary(data).to(device)
    old, new, known = (
        torch.tensor(part, device=device)
        for part in (data.old, data.new, data.coefficients)
    )
    sizes = [max(1, round(_SHARE * part.shape[1])) for part in (data.old, data.new)]
    first = Epochs(old.shape[1], sizes[0], 2 * seed, device)
    second = Epochs(new.shape[1], sizes[1], 2 * seed + 1, device)

    def lower(model: nn.Module, batch: Tensor) -> Tensor:
        assert isinstance(model, Dictionary)
        return (
            0.5
            * (model.atoms() @ known[:, batch] - old[:, batch])
            .square()
            .sum(dim=0)
            .mean()
        )

    def upper(model: nn.Module, batch: Tensor) -> Tensor:
        assert isinstance(model, Dictionary)
        return (
            0.5
            * (model.atoms() @ model.coefficients(batch) - new[:, batch])
            .square()
            .sum(dim=0)
            .mean()
        )

    def losses(model: nn.Module) -> tuple[float, float]:
        assert isinstance(model, Dictionary)
        atoms, coefficients = data.decode(model.free())
        return data.lower(atoms), data.upper(atoms, coefficients)

    return Task(
        model, lower, upper, lambda step: (first(step), second(step)), adam(rate), steps, losses,
        partial(_metrics, data), cosine, {"data": data},
    )  # fmt: skip


def _metrics(data: DictionaryData, model: nn.Module) -> Mapping[str, float]:
    assert isinstance(model, Dictionary)
    atoms, coefficients = data.decode(model.free())
    return {
        "recovery": recovery(atoms, data.truth),
        "old atoms": recovery(atoms, data.truth[:, :29]),
        "new atoms": recovery(atoms, data.truth[:, 40:]),
        "old loss": data.lower(atoms),
        "new loss": data.upper(atoms, coefficients),
        "fresh loss": left_over(atoms, data.fresh, data.radius),
    }


def _cg_bio(task: Task, settings: Mapping[str, float]) -> Iterator[int]:
    data: DictionaryData = task.extra["data"]
    model = task.model
    assert isinstance(model, Dictionary)
    for pair in METHODS["CG-BiO"][0](data, settings["step"], settings["power"]):
        model.set(data, data.encode(*pair))
        yield round(2 / _SHARE)  # both gradients, of all samples


@cache
def _data(seed: int) -> DictionaryData:
    return dictionary_data(seed)


def _build(size: Size, seed: int, device: str) -> Task:
    return task_of(
        _data(seed), steps=2000 if size == "full" else 1000, seed=seed, device=device
    )


EXAMPLE = Example(
    name="dictionary",
    title="Dictionary learning that must not forget",
    question="How many atoms of new samples are found, while the old ones stay as well reconstructed as they were?",
    build=_build,
    metrics=(
        Metric("recovery", "higher", "Share of the 50 true atoms with a |cosine| of at least 0.9 to some learnt one."),
        Metric("new atoms", "higher", "The same for the ten atoms that only new samples have."),
        Metric("old atoms", "higher", "The same for the 29 atoms that only old samples have."),
        Metric("old loss", "lower", "The lower loss: old samples with their old coefficients."),
        Metric("new loss", "lower", "The upper loss: new samples with their learnt coefficients."),
        Metric("fresh loss", "lower", "Further samples of the new kind, with the best coefficients for these atoms."),
    ),
    tolerance="5%",
    reference="start",
    methods=(
        OwnMethod(
            "cg-bio", "Conditional gradients on the constraint sets with a cut for the old samples (Jiang et al. 2023)",
            _cg_bio, tuple({"step": s, "power": p} for s in METHODS["CG-BiO"][1] for p in (0.5, 0.65)),
        ),
    ),
    limits="Made data, as the literature has it; all methods but cg-bio see free variables instead of constraints.",
)  # fmt: skip
