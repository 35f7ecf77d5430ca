"""Real, if small, training: a CNN and a transformer on scikit-learn's digits, a sparsity loss beside cross-entropy."""

import pytest
from sklearn.datasets import load_digits
from torch.nn import functional

import torch
from tiebreak.torch import DynamicBarrier
from torch import nn
from training import simple_method


class Transformer(nn.Module):
    """Rows of the image as tokens."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.position = nn.Parameter(torch.zeros(8, 16))
        self.block = nn.TransformerEncoderLayer(
            16, nhead=2, dim_feedforward=32, dropout=0.0, batch_first=True
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(
            self.block(self.embed(x.squeeze(1)) + self.position).mean(dim=1)
        )


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32).unsqueeze(
        1
    ) / 16, torch.tensor(data.target)


def sparsity(model):
    """A smoothed ℓ1 norm per weight."""
    total = sum((p.square() + 1e-4).sqrt().sum() for p in model.parameters())
    return total / sum(p.numel() for p in model.parameters())


def train(model, opt, digits, epochs, barrier):
    images, labels = digits
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(images), generator=generator).split(128):
            lower = functional.cross_entropy(model(images[rows]), labels[rows])
            if barrier:
                with opt.lower(lower):
                    lower.backward()
                upper = sparsity(model)
                with opt.upper(upper):
                    upper.backward()
                opt.step()
            else:
                opt.zero_grad()
                lower.backward()
                opt.step()
    with torch.no_grad():
        return float(functional.cross_entropy(model(images), labels)), float(
            sparsity(model)
        )


@pytest.mark.parametrize("make", [cnn, Transformer])
def test_the_upper_loss_improves_and_the_lower_one_stays_within_its_tolerance(
    make, digits
):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make()
    g, f = train(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0),
        digits,
        20,
        barrier=False,
    )
    assert g < 0.35  # trained: chance is 2.3
    base = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    opt = DynamicBarrier(base, tolerance=0.05, reference=g)
    after_g, after_f = train(model, opt, digits, 12, barrier=True)
    assert after_g <= g + 0.05 + 0.02  # the tolerance, and what mini-batches blur
    assert after_f < 0.97 * f


def test_training_is_deterministic(digits):
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        torch.set_num_threads(1)
        model = cnn()
        opt = DynamicBarrier(
            torch.optim.SGD(model.parameters(), lr=0.05),
            method=simple_method(estimator="average"),
        )
        found.append(train(model, opt, digits, 1, barrier=True))
    assert found[0] == found[1]
