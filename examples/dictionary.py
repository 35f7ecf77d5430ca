"""Dictionary learning that must not forget
========================================

Run it: ``python examples/dictionary.py`` (needs torch).

A dictionary is learnt from old samples. New samples use ten further atoms. Lower loss: the old samples, reconstructed
with their old coefficients; it may rise by 5 %. Upper loss: the new samples, whose coefficients are learnt as well.
Atoms must stay in the unit ball and coefficients in a 1-norm ball: both are smooth images of free variables, so that
nothing needs to be projected.
"""

import numpy as np
import torch

import tiebreak

STEPS = 500
RADIUS = 3.0  # of the coefficients' 1-norm ball
rng = np.random.default_rng(0)
truth = rng.standard_normal((25, 50))
truth /= np.linalg.norm(truth, axis=0)


def samples(atoms: np.ndarray, count: int) -> torch.Tensor:
    """Samples, a column each, of five of these atoms with a little noise."""
    coefficients = np.zeros((truth.shape[1], count))
    for column in coefficients.T:
        column[rng.choice(atoms, 5, replace=False)] = rng.uniform(
            0.2, 1, 5
        ) * rng.choice([-1, 1], 5)
    return torch.tensor(
        truth @ coefficients + 0.01 * rng.standard_normal((len(truth), count))
    )


old, new = samples(np.arange(40), 250), samples(np.arange(29, 50), 200)


def first_stage(steps: int = 10_000) -> tuple[torch.Tensor, torch.Tensor]:
    """50 atoms, ten of them 0, and coefficients, learnt from the old samples alone by conditional gradients."""
    samples = old.numpy()
    atoms = rng.standard_normal((25, 40))
    atoms /= np.linalg.norm(atoms, axis=0)
    coefficients = np.zeros((40, 250))
    for share in 1 / np.sqrt(np.arange(1, steps + 1)):
        rest = atoms @ coefficients - samples
        outward, slope = rest @ coefficients.T, atoms.T @ rest
        atoms = (1 - share) * atoms - share * outward / np.maximum(
            np.linalg.norm(outward, axis=0), 1e-12
        )
        largest = np.abs(slope).argmax(axis=0)
        coefficients *= 1 - share
        coefficients[largest, np.arange(250)] -= (
            share * RADIUS * np.sign(slope[largest, np.arange(250)])
        )
    return torch.tensor(np.pad(atoms, ((0, 0), (0, 10)))), torch.tensor(
        np.pad(coefficients, ((0, 10), (0, 0)))
    )


learnt, known = first_stage()


def ball(u: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """All of space onto the closed unit ball."""
    return 2 * u / (1 + u.square().sum(dim=axes, keepdim=True))


class Dictionary(torch.nn.Module):
    """The atoms of the first stage and coefficients of the new samples, as images of free variables."""

    def __init__(self) -> None:
        super().__init__()
        squared = learnt.square().sum(dim=0)
        self.u = torch.nn.Parameter(learnt / (1 + (1 - squared).clamp(min=0).sqrt()))
        start = torch.tensor(np.random.default_rng(1).standard_normal((2, 50, 200)))
        self.v = torch.nn.Parameter(0.7 * start / start.square().sum(dim=(0, 1)).sqrt())

    def atoms(self) -> torch.Tensor:
        return ball(self.u, (0,))

    def coefficients(self) -> torch.Tensor:
        squares = ball(self.v, (0, 1)).square()
        return RADIUS * (squares[0] - squares[1])


def old_loss(model: Dictionary) -> torch.Tensor:
    return 0.5 * (model.atoms() @ known - old).square().sum(dim=0).mean()


def new_loss(model: Dictionary) -> torch.Tensor:
    return 0.5 * (model.atoms() @ model.coefficients() - new).square().sum(dim=0).mean()


def train(with_old: bool) -> Dictionary:
    model = Dictionary()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    if with_old:
        opt = tiebreak.torch.DynamicBarrier(
            opt, tolerance="5%", reference="start", model=model
        )
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    for _ in range(STEPS):
        if with_old:
            opt.step(lower=lambda: old_loss(model), upper=lambda: new_loss(model))
        else:
            opt.zero_grad()
            new_loss(model).backward()
            opt.step()
        rate.step()
    return model


@torch.no_grad()
def show(name: str, model: Dictionary) -> None:
    atoms = model.atoms().numpy()
    cosines = np.abs(
        (atoms / np.maximum(np.linalg.norm(atoms, axis=0), 1e-9)).T @ truth
    ).max(axis=0)
    shares = [
        np.mean(cosines[part] >= 0.9)
        for part in (slice(None), slice(29), slice(40, None))
    ]
    print(
        f"{name:<34}{float(old_loss(model)):>10.4f}{float(new_loss(model)):>10.4f}"
        + "".join(f"{share:>8.0%}" for share in shares)
    )


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'':<34}{'old loss':>10}{'new loss':>10}{'atoms':>8}{'old':>8}{'new':>8}")
    show("learnt from the old samples", Dictionary())
    show("then from the new samples alone", train(with_old=False))
    show("then with DynamicBarrier, 5 %", train(with_old=True))
    print(
        "\nAtoms: the share of the 50 true ones that were found; old, new: of those that only such samples have."
    )


if __name__ == "__main__":
    main()
