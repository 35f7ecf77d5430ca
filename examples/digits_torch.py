"""Sparsity without giving up the fit, in PyTorch
==============================================

Run it: ``python examples/digits_torch.py`` (a minute or two on a CPU; needs torch and scikit-learn).

The problem of ``digits_jax.py``: a small network on scikit-learn's digits. The lower loss is cross-entropy; the upper
loss is the mean absolute weight, smoothed. A weighted sum f + c·g needs a c, and every c is another answer. With a
tolerance you say how much of the fit may be given up, against a twin that is trained on the fit alone.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn.functional import cross_entropy

from tiebreak import methods
from tiebreak.torch import DynamicBarrier, Progress

BATCH, TOLERANCE = 64, 0.02
IMAGES, LABELS = load_digits(return_X_y=True)
TRAIN_X, TEST_X, TRAIN_Y, TEST_Y = (
    torch.as_tensor(part)
    for part in train_test_split(IMAGES.astype("float32") / 16, LABELS, random_state=0)
)


def weights(model):
    return torch.cat(
        [layer.weight.ravel() for layer in model if isinstance(layer, torch.nn.Linear)]
    )


def fit(model, rows):
    """g, the lower loss: cross-entropy."""
    return cross_entropy(model(TRAIN_X[rows]), TRAIN_Y[rows])


def size(model):
    """f, the upper loss: the mean absolute weight, smoothed at 0."""
    return (weights(model) ** 2 + 1e-6).sqrt().mean()


def train(name, how, seed, steps):
    """A whole training run: its last losses, and what the optimizer says of its last step."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    opt = DynamicBarrier(adam, model=model, **how)
    opt.register_step_post_hook(
        Progress(steps, name=f"{name}, seed {seed}")
    )  # a line on standard error
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for _ in range(steps):
        rows = torch.randint(0, len(TRAIN_X), (BATCH,))
        opt.step(lower=lambda rows=rows: fit(model, rows), upper=lambda: size(model))
        rate.step()
    ended = None
    if (
        "tolerance" in how
    ):  # both losses over all training data: the promise is checked, and what is left of it used
        ended = opt.finish(
            lower=lambda: fit(model, slice(None)), upper=lambda: size(model)
        )
    with torch.no_grad():
        found = {
            "train loss": float(fit(model, slice(None))),
            "accuracy": float((model(TEST_X).argmax(dim=1) == TEST_Y).float().mean()),
            "weights left": float((weights(model).abs() > 1e-2).float().mean()),
        }
    if ended is not None:
        found |= {"excess": ended.excess}
    return found | {"last λ": opt.log()["multiplier"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    # Weighted sums are the method `penalty` with a constant weight: the same code, another rule.
    ways = {
        f"f + {c:g} g": {"method": methods.penalty.replace(barrier=c)}
        for c in (0.02, 0.2, 2)
    }
    ways[f"twin + {TOLERANCE}"] = {"tolerance": TOLERANCE, "reference": "twin"}
    print(f"{options.seeds} seeds, {options.steps} steps of {BATCH} images: means")
    print(
        f"{'optimizer':<18} {'train loss':>10} {'accuracy':>9} {'weights left':>13} {'last λ':>8} {'excess':>7}"
    )
    for name, how in ways.items():
        runs = [train(name, how, seed, options.steps) for seed in range(options.seeds)]
        mean = {key: sum(run[key] for run in runs) / len(runs) for key in runs[0]}
        excess = f"{mean['excess']:>7.2f}" if "excess" in mean else ""
        print(
            f"{name:<18} {mean['train loss']:>10.3f} {mean['accuracy']:>9.1%} {mean['weights left']:>13.1%} "
            f"{mean['last λ']:>8.2g} {excess}"
        )


if __name__ == "__main__":
    main()
