"""Oracles that agree with themselves pass whatever they are; every usual mistake is found."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import call
from hypothesis import given, settings
from hypothesis import strategies as st

import tiebreak
from tiebreak import Exact, FiniteSum, Gaussian, check_oracle
from tiebreak.oracles.check_oracle import disagreements
from tiebreak.problems import Problem, named
from tiebreak.problems.testbed import TESTBED
from tiebreak.studies import Comparison, compare
from tiebreak.studies.comparison.report import notes


@pytest.mark.parametrize("name", TESTBED)
def test_every_problem_of_the_test_bed_agrees_with_itself(name: str) -> None:
    problem = named(name)
    for level in (problem.upper, problem.lower):
        for seed in range(3):
            check_oracle(level, problem.x0, seed=seed)


@settings(deadline=None, max_examples=60)
@given(
    scale=st.floats(1e-6, 1e6),
    dimension=st.sampled_from([1, 2, 30, 3000]),
    offset=st.floats(
        -100, 100
    ),  # farther out the steps, a share of |x|, are so long that cosh bends within them
    sigma=st.floats(0, 100),
    seed=st.integers(0, 10**6),
)
def test_right_ones_pass_and_wrong_signs_and_factors_do_not(
    scale: float, dimension: int, offset: float, sigma: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    goal, x = offset + rng.standard_normal((2, dimension))

    def value(x: np.ndarray) -> float:
        return float(scale * np.sum(np.cosh(x - goal) - 1))

    def gradient(x: np.ndarray) -> np.ndarray:
        return scale * np.sinh(x - goal)

    check_oracle(Gaussian(gradient, sigma * scale, value), x, seed=seed)
    for factor in (-1.0, 0.5, 2.0):
        wrong = Exact(lambda x, factor=factor: factor * gradient(x), value)
        (text,) = disagreements(wrong, x, seed)
        assert text.startswith(
            (
                "along the gradient its value rises by",
                "along a random direction its value rises by",
            )
        )
        assert text.endswith("(the sign?)" if factor < 0 else "(a factor of 2?)")


def test_a_wrong_coordinate_shows() -> None:
    turned = np.array([1.0, -1.0, 1.0])
    wrong = Exact(lambda x: turned * x, lambda x: x @ x / 2)
    with pytest.raises(ValueError, match=r"oracle: along .* its value rises by"):
        check_oracle(wrong, [1.0, 2.0, 3.0])


class Rows:
    """The mean of ‖x − row‖²/2; `mistake` is made with every mini-batch."""

    def __init__(self, mistake: str = "") -> None:
        self.rows, self.mistake = (
            np.random.default_rng(0).standard_normal((50, 4)) + 3,
            mistake,
        )

    def sample(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return rng.integers(25 if self.mistake == "half" else 50, size=size)

    def gradient(self, x: np.ndarray, token: np.ndarray) -> np.ndarray:
        if self.mistake == "sum":
            return (x - self.rows[token]).sum(axis=0)
        return (-1 if self.mistake == "sign" else 1) * (
            x - self.rows[token].mean(axis=0)
        )

    def exact_gradient(self, x: np.ndarray) -> np.ndarray:
        return x - self.rows.mean(axis=0)


def test_samples_are_means_whose_expectation_is_the_gradient() -> None:
    for seed in range(20):
        check_oracle(Rows(), np.zeros(4), seed=seed)
    for mistake, guess in (
        ("sum", r"\(a sum, not a mean\?\)"),
        ("sign", r"\(the sign\?\)"),
        ("half", ""),
    ):
        with pytest.raises(
            ValueError,
            match=rf"its mini-batches of 256 have .* its exact gradient has .*{guess}",
        ):
            check_oracle(Rows(mistake), np.zeros(4))


class Valued:
    """Rows without their exact gradient."""

    def __init__(self, mistake: str = "") -> None:
        self.inner = Rows(mistake)
        self.sample, self.gradient = self.inner.sample, self.inner.gradient

    def value(self, x: np.ndarray, token: object = None) -> float:
        return float(((x - self.inner.rows) ** 2).sum() / 2 / len(self.inner.rows))


def test_without_an_exact_gradient_samples_are_compared_with_values() -> None:
    for seed in range(20):
        check_oracle(Valued(), np.zeros(4), seed=seed)
    for mistake in ("sum", "sign"):
        with pytest.raises(ValueError, match="its value rises by"):
            check_oracle(Valued(mistake), np.zeros(4))


@pytest.mark.parametrize("factor", [-1.0, 2.0, 0.5])
@pytest.mark.parametrize("dimension", [1, 3, 1000])
def test_mistakes_show_in_single_precision_and_with_an_offset(
    factor: float, dimension: int
) -> None:
    x = np.random.default_rng(0).standard_normal(dimension)

    def single(x: np.ndarray) -> np.floating:
        return (np.float32(x) ** 2).sum()

    values = (
        single,
        lambda x: float(single(x)),
        lambda x: 1e9 + x @ x,
        lambda x: 1e200 * (x @ x),
    )
    for value, scale in zip(values, (1.0, 1.0, 1.0, 1e200), strict=True):
        check_oracle(Exact(lambda x, scale=scale: scale * 2 * x, value), x)
        with pytest.raises(ValueError, match="its value rises by"):
            check_oracle(Exact(lambda x, scale=scale: factor * scale * 2 * x, value), x)


def test_what_is_rare_is_not_taken_for_a_mistake() -> None:
    """One term of many makes the whole gradient; most mini-batches are 0."""
    for n in (2000, 20000):
        rare = FiniteSum(
            lambda x, i, n=n: 0 * x + np.where(i == 0, float(n), 0.0).mean(), n
        )
        for seed in range(20):
            check_oracle(rare, np.ones(3), seed=seed)


def _only_above_zero(x: np.ndarray) -> float:
    if (x <= 0).any():
        raise ValueError("math domain error")
    return float(np.log(x).sum())


@pytest.mark.parametrize(
    "oracle",
    [
        Exact(lambda x: np.sign(x), lambda x: np.abs(x).sum()),  # a kink at the start
        Exact(lambda x: 0 * x, lambda x: 1.0),
        Exact(lambda x: 1 / x, lambda x: np.log(x).sum()),
        Exact(lambda x: 1 / x, _only_above_zero),
        Exact(
            lambda x: np.float32(2) * x.astype(np.float32), lambda x: np.float32(x @ x)
        ),
        Exact(lambda x: 2 * x),
        Exact(lambda x: 1e7 * np.cos(1e7 * x), lambda x: np.sin(1e7 * x).sum()),
        FiniteSum(lambda x, i: x - np.eye(3)[i].mean(axis=0), 3),
        lambda x: 2 * x,
    ],
)
@pytest.mark.filterwarnings("error")
def test_nothing_is_said_where_nothing_is_wrong(oracle: Any) -> None:
    for x in (np.full(3, 1e-9), np.full(3, 1e-3), np.array([1e-9, 1.0, 5.0])):
        for seed in range(5):
            check_oracle(oracle, x, seed=seed)


class OnlyAboveZero(Rows):
    """Its samples raise outside of their domain, its exact gradient does not."""

    def gradient(self, x: np.ndarray, token: np.ndarray) -> np.ndarray:
        if (x < 0).any():
            raise ValueError("outside")
        return super().gradient(x, token)


def test_samples_with_a_domain_are_looked_at_in_it() -> None:
    for seed in range(5):
        check_oracle(OnlyAboveZero(), np.zeros(4), seed=seed)
        with pytest.raises(ValueError, match="its mini-batches of 256 have"):
            check_oracle(OnlyAboveZero("sum"), np.zeros(4), seed=seed)


def test_what_cannot_be_used_at_all_is_said() -> None:
    with pytest.raises(ValueError, match="oracle: its gradient at x is not finite"):
        check_oracle(Exact(lambda x: x * np.nan), np.ones(3))
    with pytest.raises(
        ValueError, match=r"its gradient has the shape \(2,\), x has \(3,\)"
    ):
        check_oracle(Exact(lambda x: 2 * x[:2]), np.ones(3))
    for gradient, said in (
        (lambda x, token: x.sum(), r"the shape \(\), x"),
        (lambda x, token: x / 0, "not finite, where"),
    ):
        broken = Rows()
        broken.gradient = gradient  # type: ignore[method-assign]
        with pytest.raises(ValueError, match=said):
            check_oracle(broken, np.ones(4))
    with pytest.raises(
        TypeError,
        match=r"oracle=3 must have sample\(rng, size\) and gradient\(x, token\), or be",
    ):
        check_oracle(3, np.ones(2))


WRONG = """
import numpy as np
from tiebreak import Exact
from tiebreak.problems import Problem
f = Exact(lambda x: x - 3.0, lambda x: ((x - 3) ** 2).sum() / 2)
g = Exact(lambda x: -x, lambda x: x @ x / 2)  # the sign
problem = Problem("turned", f, g, np.ones(2))
"""


def test_a_comparison_says_so_before_and_after(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(WRONG, encoding="utf-8")
    asked = Comparison(
        f"{file}:problem,paper", "sdbgd", budgets=[1000], runs=2, trials=1
    )
    with pytest.warns(
        tiebreak.solver.result_warnings.Remark,
        match="turned, lower: along the gradient its value rises by -1.4",
    ):
        compare(asked)
    output = tmp_path / "out"
    words = (
        "--methods",
        "sdbgd",
        "--budgets",
        "1e3",
        "--runs",
        "2",
        "--trials",
        "1",
        "--output",
        output,
    )
    done = call("compare", "--problems", f"{file}:problem", *words)
    assert done.stderr.count("turned, lower: along the gradient") == 1
    summary = (output / "summary.md").read_text(encoding="utf-8")
    assert (
        "contradicts itself, what follows from it means nothing: turned, lower"
        in summary
    )


def test_a_right_problem_is_not_doubted() -> None:
    f = Exact(lambda x: x - 3.0, lambda x: ((x - 3) ** 2).sum() / 2)
    problem = Problem(
        "right", f, Gaussian(lambda x: x, 0.1, lambda x: x @ x / 2), np.ones(2)
    )
    asked = Comparison([problem], "sdbgd", budgets=[1000], runs=2, trials=1)
    assert asked.contradictions == []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", tiebreak.solver.result_warnings.Remark)
        found = compare(asked)
    assert told == []
    assert not any("contradicts" in text for text in notes(found))
