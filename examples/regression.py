"""Over-parametrised regression
============================

Run it: ``python examples/regression.py`` (needs torch and scikit-learn).

88 training rows, 132 features: many models fit the training rows exactly. Lower loss: the training rows. Upper loss:
244 validation rows. The exact answer is known, so the distance to it can be seen; rows that neither loss sees show
whether it is worth having.
"""

import numpy as np
import torch
from sklearn.datasets import load_diabetes

import tiebreak

STEPS = 600
FEATURES = 132
Rows = tuple[np.ndarray, np.ndarray]


def rows(seed: int = 0) -> list[Rows]:
    """The diabetes data as random cosines: features and targets for training, validation and test."""
    inputs, targets = load_diabetes(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(targets))
    seen = order[:332]  # means and scales come from rows that may be looked at
    inputs = (inputs - inputs[seen].mean(axis=0)) / inputs[seen].std(axis=0)
    targets = (targets - targets[seen].mean()) / targets[seen].std()
    directions = (
        rng.standard_normal((inputs.shape[1], FEATURES)) * 2 / np.sqrt(inputs.shape[1])
    )
    cosines = np.sqrt(2 / FEATURES) * np.cos(
        inputs @ directions + rng.uniform(0, 2 * np.pi, FEATURES)
    )
    return [(cosines[part], targets[part]) for part in np.split(order, [88, 332])]


def loss(part: Rows, x: np.ndarray) -> float:
    return np.mean((part[0] @ x - part[1]) ** 2) / 2


def gradient(part: Rows, x: np.ndarray) -> np.ndarray:
    return part[0].T @ (part[0] @ x - part[1]) / len(part[1])


def exact_solution(train: Rows, validation: Rows) -> np.ndarray:
    """The least validation loss among the exact fits: p + N z, N a basis of the null space of the training rows."""
    fit = np.linalg.pinv(train[0]) @ train[1]
    null = np.linalg.svd(train[0])[2][len(train[1]) :].T
    return fit + null @ np.linalg.pinv(validation[0] @ null) @ (
        validation[1] - validation[0] @ fit
    )


train, validation, test = rows()
solution = exact_solution(train, validation)


def show(name: str, x: np.ndarray) -> None:
    distance = np.linalg.norm(x - solution) / np.linalg.norm(solution)
    losses = f"{loss(train, x):>10.1e}{loss(validation, x):>12.3f}{loss(test, x):>8.3f}"
    print(f"{name:<44}{losses}{distance:>10.2f}")


def by_solver(steps: int) -> np.ndarray:
    """The deterministic barrier of the core: exact gradients, steps that shrink."""
    schedule = tiebreak.Schedule(step_size=tiebreak.Power(4.0, -1 / 4), barrier=1.0)
    method = tiebreak.methods.dbgd.replace(schedule=schedule)
    upper, lower = (lambda x: gradient(validation, x)), (lambda x: gradient(train, x))
    return tiebreak.minimize(
        upper, lower, np.zeros(FEATURES), method=method, steps=steps, record=None
    ).x


def by_torch(steps: int) -> np.ndarray:
    """Mini-batches in a training loop, with a tolerance: the training loss may end 0.005 above what it could reach."""
    torch.manual_seed(0)
    model = torch.nn.Linear(FEATURES, 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)

    def batch_loss(part: Rows, size: int):
        features, targets = map(torch.tensor, part)
        batch = torch.randint(len(targets), (size,))
        return lambda: (
            0.5 * (model(features[batch]).squeeze(1) - targets[batch]).square().mean()
        )

    base = torch.optim.SGD(model.parameters(), lr=8.0, momentum=0.9)
    opt = tiebreak.torch.DynamicBarrier(
        base, tolerance=0.005, reference="twin", model=model
    )
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for _ in range(steps):
        opt.step(lower=batch_loss(train, 44), upper=batch_loss(validation, 61))
        rate.step()
    return model.weight.detach().squeeze(0).numpy()


def main() -> None:
    print(f"{'':<44}{'training':>10}{'validation':>12}{'test':>8}{'distance':>10}")
    show("the mean for every row", np.zeros(FEATURES))
    show("least-norm fit of the training rows", np.linalg.pinv(train[0]) @ train[1])
    show(f"DBGD, exact gradients, {STEPS} steps", by_solver(STEPS))
    show(f"DynamicBarrier, tolerance 0.005, {STEPS} steps", by_torch(STEPS))
    show("exact solution", solution)
    print(
        "\nDistance: to the exact solution, as a share of its norm. Test: rows that neither loss sees."
    )


if __name__ == "__main__":
    main()
