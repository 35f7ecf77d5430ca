"""Dictionary learning that must not forget
========================================

Run it: ``python examples/dictionary.py`` (needs torch).

A dictionary was learnt from old samples. New samples use ten further atoms. Lower loss: the old samples, reconstructed
with their old coefficients; it may rise by 5 %. Upper loss: the new samples, whose coefficients are learnt as well.
Atoms must stay in the unit ball and coefficients in a 1-norm ball: both are smooth images of free variables, so that
nothing needs to be projected.
"""

import torch

import tiebreak
from tiebreak.problems import dictionary_data, recovery
from tiebreak.problems.dictionary import STRETCH, unball

STEPS = 500
data = dictionary_data(seed=0)
old, new, known = (torch.tensor(part) for part in (data.old, data.new, data.coefficients))


def ball(u: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """All of space onto the closed unit ball."""
    return 2 * u / (1 + u.square().sum(dim=axes, keepdim=True))


class Dictionary(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.u = torch.nn.Parameter(torch.tensor(unball(data.atoms)))
        self.v = torch.nn.Parameter(torch.tensor(STRETCH * data.start))

    def atoms(self) -> torch.Tensor:
        return ball(self.u, (0,))

    def coefficients(self) -> torch.Tensor:
        squares = ball(self.v, (0, 1)).square()
        return data.radius * (squares[0] - squares[1])


def old_loss(model: Dictionary) -> torch.Tensor:
    return 0.5 * (model.atoms() @ known - old).square().sum(dim=0).mean()


def new_loss(model: Dictionary) -> torch.Tensor:
    return 0.5 * (model.atoms() @ model.coefficients() - new).square().sum(dim=0).mean()


def train(with_old: bool) -> Dictionary:
    model = Dictionary()
    base = torch.optim.Adam(model.parameters(), lr=0.01)
    # More is allowed while the rate is high: else the new samples wait until it has fallen.
    opt = tiebreak.torch.DynamicBarrier(base, tolerance="5%", reference="start", headroom="auto") if with_old else base
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
    shares = [recovery(atoms, data.truth[:, part]) for part in (slice(None), slice(29), slice(40, None))]
    print(
        f"{name:<34}{float(old_loss(model)):>10.4f}{float(new_loss(model)):>10.4f}"
        + "".join(f"{s:>8.0%}" for s in shares)
    )


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'':<34}{'old loss':>10}{'new loss':>10}{'atoms':>8}{'old':>8}{'new':>8}")
    show("learnt from the old samples", Dictionary())
    show("then from the new samples alone", train(with_old=False))
    show("then with DynamicBarrier, 5 %", train(with_old=True))
    print("\nAtoms: the share of the 50 true ones that were found; old, new: of those that only such samples have.")


if __name__ == "__main__":
    main()
