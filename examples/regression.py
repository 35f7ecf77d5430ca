"""Over-parametrised regression
============================

Run it: ``python examples/regression.py`` (needs torch and scikit-learn).

88 training rows, 132 features: many models fit the training rows exactly. Lower loss: the training rows. Upper loss:
244 validation rows. The exact answer is known, so the distance to it can be seen; rows that neither loss sees show
whether it is worth having.
"""

import numpy as np
import torch

import tiebreak
from tiebreak.problems import regression, regression_data

STEPS = 600
data = regression_data(seed=0)
problem = regression(data)


def show(name: str, x: np.ndarray) -> None:
    distance = np.linalg.norm(x - problem.solution) / np.linalg.norm(problem.solution)
    print(
        f"{name:<44}{data.train.loss(x):>10.1e}{data.validation.loss(x):>12.3f}{data.test.loss(x):>8.3f}{distance:>10.2f}"
    )


def by_solver(steps: int) -> np.ndarray:
    """The deterministic barrier of the core: exact gradients, steps that shrink."""
    schedule = tiebreak.Schedule(step_size=tiebreak.Power(4.0, -1 / 4), barrier=1.0)
    method = tiebreak.methods.dbgd.replace(schedule=schedule)
    exact = (problem.upper.exact_gradient, problem.lower.exact_gradient)
    return tiebreak.minimize(*exact, problem.x0, method=method, steps=steps, record=None).x


def by_torch(steps: int) -> np.ndarray:
    """Mini-batches in a training loop, with a tolerance: the training loss may end 0.005 above what it could reach."""
    torch.manual_seed(0)
    train, validation = (
        (torch.tensor(rows.features), torch.tensor(rows.targets)) for rows in (data.train, data.validation)
    )
    model = torch.nn.Linear(len(problem.x0), 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)

    def loss(rows: tuple, size: int):
        batch = torch.randint(len(rows[1]), (size,))
        return lambda: 0.5 * (model(rows[0][batch]).squeeze(1) - rows[1][batch]).square().mean()

    base = torch.optim.SGD(model.parameters(), lr=8.0, momentum=0.9)
    opt = tiebreak.torch.DynamicBarrier(base, tolerance=0.005, reference="twin")
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for _ in range(steps):
        opt.step(lower=loss(train, 44), upper=loss(validation, 61))
        rate.step()
    return model.weight.detach().squeeze(0).numpy()


def main() -> None:
    print(f"{'':<44}{'training':>10}{'validation':>12}{'test':>8}{'distance':>10}")
    show("the mean for every row", problem.x0)
    show("least-norm fit of the training rows", np.linalg.pinv(data.train.features) @ data.train.targets)
    show(f"DBGD, exact gradients, {STEPS} steps", by_solver(STEPS))
    show(f"DynamicBarrier, tolerance 0.005, {STEPS} steps", by_torch(STEPS))
    show("exact solution", problem.solution)
    print("\nDistance: to the exact solution, as a share of its norm. Test: rows that neither loss sees.")


if __name__ == "__main__":
    main()
