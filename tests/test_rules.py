"""The multiplier rules: the paper's lemmas, what each rule minimises, every corner, every array library.

Floating point. u = 2⁻⁵³ is the unit roundoff and γₙ = nu/(1 − nu) (Higham) bounds the effect of n roundings.
Inequalities are evaluated in rational arithmetic from the float λ that a rule returned, so the only error is that of λ
itself; a test counts its roundings and allows γₙ times the size of the terms, never more. Square roots carry 50 digits.
"""

import ast
import inspect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from tiebreak import rules

MANY = settings(max_examples=100, deadline=None)
U = Fraction(1, 2**53)
NAN, INF = math.nan, math.inf


def gamma(n: int, u: Fraction = U) -> Fraction:
    return n * u / (1 - n * u)


def root(square: Fraction) -> Fraction:
    """√, to 50 digits."""
    with localcontext() as context:
        context.prec = 55
        return Fraction(
            (Decimal(square.numerator) / Decimal(square.denominator)).sqrt()
        )


def dot(a, b) -> Fraction:
    return sum(
        (Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), Fraction(0)
    )


def along(a, t, b) -> list[Fraction]:
    """a + t b."""
    return [Fraction(x) + Fraction(t) * Fraction(y) for x, y in zip(a, b, strict=True)]


# ------------------------------------------------------------------------------------- the table: a row per rule


@dataclass(frozen=True)
class Row:
    """A rule in rational arithmetic: λ = [φ − fg]₊ / (gg + r), or `formula` where it is not of this form.

    `size` bounds |φ| and the terms it is the least of; `roundings` counts the operations from the inputs to λ.
    `parameters` are kinds of number: "positive" (> 0), "nonnegative" or "real".
    """

    parameters: dict[str, str]
    roundings: int
    threshold: Callable[..., Fraction] | None = None
    slack: Callable[..., Fraction] | None = None
    size: Callable[..., Fraction] | None = None
    formula: Callable[..., Fraction] | None = None
    reaches_zero: bool = field(
        default=True
    )  # whether gg = 0 can make the denominator 0

    def exact(self, fg, gg, **p) -> Fraction:
        if self.formula is not None:
            return self.formula(fg, gg, **p)
        denominator = gg + self.slack(**p)
        return (
            max(Fraction(0), self.threshold(gg, **p) - fg) / denominator
            if denominator
            else Fraction(0)
        )

    def magnitude(self, fg, gg, **p) -> Fraction:
        """What γₙ multiplies: the formula with every term's absolute value."""
        if self.formula is not None:
            return abs(self.formula(fg, gg, **p))
        denominator = gg + self.slack(**p)
        return (
            (self.size(gg, **p) + abs(fg)) / denominator if denominator else Fraction(0)
        )


def _value(lower_value, target, rate):
    return rate * (lower_value - target)


VALUE = {
    "lower_value": "real",
    "target": "real",
    "rate": "nonnegative",
    "regularizer": "nonnegative",
}
ROWS = {
    "dbgd": Row(
        {"barrier": "nonnegative"},
        roundings=3,  # β·gg, − fg, /
        threshold=lambda gg, barrier: barrier * gg,
        slack=lambda barrier: Fraction(0),
        size=lambda gg, barrier: barrier * gg,
    ),
    "sdbpg": Row(
        {"barrier": "nonnegative", "regularizer": "nonnegative"},
        roundings=5,  # gg + ρ, β·, − fg; gg + ρ, /
        threshold=lambda gg, barrier, regularizer: barrier * (gg + regularizer),
        slack=lambda barrier, regularizer: regularizer,
        size=lambda gg, barrier, regularizer: barrier * (gg + regularizer),
    ),
    "sdbgd": Row(
        {"barrier": "nonnegative", "regularizer": "nonnegative"},
        roundings=4,  # β·gg, − fg; gg + ρ, /
        threshold=lambda gg, barrier, regularizer: barrier * gg,
        slack=lambda barrier, regularizer: regularizer,
        size=lambda gg, barrier, regularizer: barrier * gg,
    ),
    "penalized": Row(
        {"barrier": "nonnegative", "regularizer": "nonnegative", "penalty": "positive"},
        roundings=6,  # gg + γ, β·, − fg; 1/μ, gg +, /
        threshold=lambda gg, barrier, regularizer, penalty: (
            barrier * (gg + regularizer)
        ),
        slack=lambda barrier, regularizer, penalty: 1 / penalty,
        size=lambda gg, barrier, regularizer, penalty: barrier * (gg + regularizer),
        reaches_zero=False,
    ),
    "by_value": Row(
        VALUE,
        roundings=5,  # g − target, α·, − fg; gg + ρ, /
        threshold=lambda gg, lower_value, target, rate, regularizer: _value(
            lower_value, target, rate
        ),
        slack=lambda lower_value, target, rate, regularizer: regularizer,
        size=lambda gg, lower_value, target, rate, regularizer: abs(
            _value(lower_value, target, rate)
        ),
    ),
    "least": Row(
        {"barrier": "nonnegative"} | VALUE,
        roundings=5,
        threshold=lambda gg, barrier, lower_value, target, rate, regularizer: min(
            _value(lower_value, target, rate), barrier * gg
        ),
        slack=lambda barrier, lower_value, target, rate, regularizer: regularizer,
        size=lambda gg, barrier, lower_value, target, rate, regularizer: max(
            abs(_value(lower_value, target, rate)), barrier * gg
        ),
    ),
    "constant": Row(
        {"barrier": "nonnegative"},
        roundings=0,
        formula=lambda fg, gg, barrier: barrier,
        reaches_zero=False,
    ),
}
BARRIERS = [name for name, row in ROWS.items() if row.formula is None]


def test_every_rule_has_a_row():
    """A new rule is covered by adding a row; its arguments are those of the row, in whatever order."""
    assert ROWS.keys() == rules.RULES.keys()
    for name, rule in rules.RULES.items():
        assert list(inspect.signature(rule).parameters) == [
            "fg",
            "gg",
            *ROWS[name].parameters,
        ]


# --------------------------------------------------------------------------------------------- what is generated

#: Magnitudes 1e-12 … 1e12.
positive = st.builds(lambda m, e: m * 10.0**e, st.floats(1, 10), st.integers(-12, 11))
KINDS = {
    "positive": positive,
    "nonnegative": st.just(0.0) | positive,
    "real": st.just(0.0)
    | st.builds(math.copysign, positive, st.sampled_from([-1.0, 1.0])),
}


def parameters_of(name: str, positive_only: bool = False):
    kinds = ROWS[name].parameters
    if positive_only:
        kinds = {
            n: "positive" if kind == "nonnegative" else kind
            for n, kind in kinds.items()
        }
    return st.fixed_dictionaries({n: KINDS[kind] for n, kind in kinds.items()})


@st.composite
def gradients(draw, dimension=None):
    """a and b at independent scales, often nearly parallel; coordinates ≥ 2⁻²⁰ or 0, so that nothing underflows."""
    if dimension is None:
        dimension = draw(st.integers(1, 4))
    unit = st.integers(-(2**20), 2**20).map(lambda i: i / 2**20)
    b = [
        x * draw(positive)
        for x in draw(st.lists(unit, min_size=dimension, max_size=dimension))
    ]
    a = [
        x * draw(positive)
        for x in draw(st.lists(unit, min_size=dimension, max_size=dimension))
    ]
    if draw(st.booleans()):  # along ±b, but for a small part
        along, off = draw(KINDS["real"]), draw(st.sampled_from([0.0, 1e-9, 1e-3]))
        a = [along * y + off * x for x, y in zip(a, b, strict=True)]
    return a, b


def scalars(a, b) -> tuple[float, float]:
    """⟨a,b⟩ and ‖b‖², each rounded once."""
    return float(dot(a, b)), float(dot(b, b))


def exactly(p: dict[str, float]) -> dict[str, Fraction]:
    return {name: Fraction(value) for name, value in p.items()}


# ----------------------------------------------------------------------------------------- the formula, everywhere


@pytest.mark.parametrize("name", ROWS)
@MANY
@given(data=st.data())
def test_rule_is_its_formula_up_to_its_roundings(name, data):
    """|λ̂ − λ| ≤ γₙ · (size of φ + |fg|) / (gg + r), with n the operations that the rule makes."""
    row = ROWS[name]
    fg, gg = data.draw(KINDS["real"]), data.draw(KINDS["nonnegative"])
    p = data.draw(parameters_of(name))
    got = rules.RULES[name](fg, gg, **p)
    assert math.isfinite(got)
    wanted = row.exact(Fraction(fg), Fraction(gg), **exactly(p))
    assert abs(Fraction(got) - wanted) <= gamma(row.roundings) * row.magnitude(
        Fraction(fg), Fraction(gg), **exactly(p)
    )


@pytest.mark.parametrize("fg", [-2.0, 0.0, 3.0])
@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row.reaches_zero])
def test_no_lower_gradient_and_no_slack_give_multiplier_zero(name, fg):
    """gg = 0 with r = 0 is defined: λ = 0, whatever the other arguments."""
    kinds = ROWS[name].parameters
    for value in (0.0, 1.0, 1e300):
        p = {n: 0.0 if n == "regularizer" else value for n in kinds}
        assert rules.RULES[name](fg, 0.0, **p) == 0.0
        assert math.copysign(1, rules.RULES[name](fg, 0.0, **p)) == 1  # not −0
        assert rules.RULES[name](fg, -0.0, **p) == 0.0
    array = rules.RULES[name](
        np.array([fg, fg]), np.array([0.0, 2.0]), **dict.fromkeys(kinds, 0.0)
    )
    assert array.tolist() == [0.0, max(0.0, -fg) / 2]


# --------------------------------------------------------------------------- Lemma "Multiplier Properties", (a)–(d)
# fg and gg are the exact inner products rounded once, so λ̂ carries the rule's own roundings and two more (gg rounded
# above and below the line).


@pytest.mark.parametrize("name", BARRIERS)
@MANY
@given(data=st.data())
def test_lemma_a_descent_on_g(name, data):
    """⟨b, d⟩ ≥ φ − rλ for d = a + λb; for SDBGD, ⟨b, d⟩ ≥ β‖b‖² − ρλ."""
    a, b = data.draw(gradients())
    p = data.draw(parameters_of(name, positive_only=True))
    row, n, exact = ROWS[name], ROWS[name].roundings + 2, exactly(p)
    lam = Fraction(rules.RULES[name](*scalars(a, b), **p))
    d = along(a, lam, b)
    gg, fg = dot(b, b), dot(a, b)
    # (gg + r)(λ̂ − λ) is what is lost of ⟨b, d⟩ + rλ, and (gg + r) · magnitude = size + |fg|.
    lost = gamma(n) * (row.size(gg, **exact) + abs(fg))
    assert dot(b, d) >= row.threshold(gg, **exact) - row.slack(**exact) * lam - lost


@pytest.mark.parametrize("name", BARRIERS)
@MANY
@given(data=st.data())
def test_lemma_b_complementarity(name, data):
    """λ⟨b, d⟩ = φλ − rλ²; for SDBGD, λ⟨b, d⟩ = βλ‖b‖² − ρλ²."""
    a, b = data.draw(gradients())
    p = data.draw(parameters_of(name, positive_only=True))
    row, n, exact = ROWS[name], ROWS[name].roundings + 2, exactly(p)
    lam = Fraction(rules.RULES[name](*scalars(a, b), **p))
    d = along(a, lam, b)
    gg, fg = dot(b, b), dot(a, b)
    difference = lam * dot(b, d) - (
        row.threshold(gg, **exact) * lam - row.slack(**exact) * lam**2
    )
    assert abs(difference) <= lam * gamma(n) * (row.size(gg, **exact) + abs(fg))


@pytest.mark.parametrize("name", ["sdbgd", "sdbpg"])
@MANY
@given(vectors=gradients(), beta=positive, rho=positive)
@example(
    vectors=([-3.0], [1.0]), beta=1e-12, rho=1.0
)  # ‖b‖ = √ρ and a = −cb: attained as β → 0
def test_lemma_c_multiplier_is_bounded(name, vectors, beta, rho):
    """0 ≤ λ ≤ β + ‖a‖/(2√ρ), up to the roundings of a quotient of positive terms."""
    a, b = vectors
    lam = rules.RULES[name](*scalars(a, b), barrier=beta, regularizer=rho)
    bound = Fraction(beta) + root(dot(a, a)) / (2 * root(Fraction(rho)))
    assert 0 <= Fraction(lam) <= bound * (1 + gamma(ROWS[name].roundings + 2))


@MANY
@given(vectors=gradients(), beta=positive, rho=positive)
def test_lemma_d_lower_part_of_the_direction_is_bounded(vectors, beta, rho):
    """λ‖b‖² ≤ β‖b‖² + ‖a‖‖b‖."""
    a, b = vectors
    lam = Fraction(rules.sdbgd(*scalars(a, b), barrier=beta, regularizer=rho))
    bound = Fraction(beta) * dot(b, b) + root(dot(a, a) * dot(b, b))
    assert lam * dot(b, b) <= bound * (1 + gamma(ROWS["sdbgd"].roundings + 2))


def test_bounds_c_and_d_are_attained():
    """(c) at β = 0, ‖b‖ = √ρ, a = −cb; (d) at ρ = 0, a = −cb: the lemma cannot be improved, nor the rule be smaller."""
    b, c, rho = [2.0, 0.0], 3.0, 4.0
    a = [-c * y for y in b]
    assert rules.sdbgd(*scalars(a, b), barrier=0.0, regularizer=rho) == 6.0 / (
        2 * math.sqrt(rho)
    )
    assert (
        rules.sdbgd(*scalars(a, b), barrier=0.5, regularizer=0.0) * 4.0
        == 0.5 * 4.0 + 6.0 * 2.0
    )


# ------------------------------------------------------------------------------------------------ stability lemma


def direction(a, b, beta, rho) -> list[Fraction]:
    """D(a, b), exact but for λ̂."""
    lam = Fraction(rules.sdbgd(*scalars(a, b), barrier=beta, regularizer=rho))
    return along(a, lam, b)


def distance(p, q) -> Fraction:
    difference = along(p, -1, q)
    return root(dot(difference, difference))


@settings(max_examples=500, deadline=None)
@given(data=st.data(), beta=positive, rho=positive)
def test_stability_lemma(data, beta, rho):
    """‖D(a,b) − D(a',b')‖ ≤ ‖a−a'‖ + stability(β, ρ, ‖a‖) ‖b−b'‖, near and far.

    λ̂'s error moves D by at most γ₆(β‖b‖² + |fg|)‖b‖/(‖b‖²+ρ) ≤ γ₆(β‖b‖ + ‖a‖), at both pairs; the constant has four
    roundings, and ‖a‖, rounded once, a fifth.
    """
    n = data.draw(st.integers(1, 3))
    a, b = data.draw(gradients(n))
    if data.draw(st.booleans()):
        a2, b2 = data.draw(gradients(n))
    else:  # nearby, where the inequality is a bound on the derivative
        by = data.draw(st.sampled_from([1e-9, 1e-4, 0.1, 2.0]))
        da, db = data.draw(gradients(n))
        largest = [max(map(abs, v)) or 1.0 for v in (a, b, da, db)]
        move = data.draw(
            st.booleans()
        )  # or b alone, where the constant does all the work
        a2 = [
            x + by * move * largest[0] / largest[2] * y
            for x, y in zip(a, da, strict=True)
        ]
        b2 = [x + by * largest[1] / largest[3] * y for x, y in zip(b, db, strict=True)]
    constant = Fraction(rules.stability(beta, rho, float(root(dot(a, a)))))
    left = distance(direction(a, b, beta, rho), direction(a2, b2, beta, rho))
    right = distance(a, a2) + constant * (1 + gamma(5)) * distance(b, b2)
    lost = gamma(6) * sum(
        Fraction(beta) * root(dot(y, y)) + root(dot(x, x))
        for x, y in ((a, b), (a2, b2))
    )
    assert left <= right + lost


@MANY
@given(beta=KINDS["nonnegative"], rho=positive, norm=KINDS["nonnegative"])
def test_stability_constant(beta, rho, norm):
    """3β/2 + 2‖a‖/√ρ; five roundings (two products, √, /, +)."""
    wanted = Fraction(3, 2) * Fraction(beta) + 2 * Fraction(norm) / root(Fraction(rho))
    assert abs(Fraction(rules.stability(beta, rho, norm)) - wanted) <= gamma(5) * wanted


def test_stability_constant_cannot_be_halved():
    """In one dimension at a = 0, D = βt³/(t²+ρ), whose slope reaches 9β/8 at t² = 3ρ: more than half of 3β/2.

    And at β = 0, a = −1, D = −1 + t²/(t²+ρ), whose slope 2tρ/(t²+ρ)² reaches 0.65 ‖a‖/√ρ.
    """
    h, beta, rho = 1e-6, 2.0, 1.0
    t = math.sqrt(3.0)
    slope = (
        float(
            distance(
                direction([0.0], [t + h], beta, rho), direction([0.0], [t], beta, rho)
            )
        )
        / h
    )
    assert slope == pytest.approx(9 / 8 * beta, rel=1e-5)
    assert (
        rules.stability(beta, rho, 0.0) / 2 < slope <= rules.stability(beta, rho, 0.0)
    )
    t = 1 / math.sqrt(3)
    slope = (
        float(
            distance(
                direction([-1.0], [t + h], 0.0, rho), direction([-1.0], [t], 0.0, rho)
            )
        )
        / h
    )
    assert slope == pytest.approx(2 * t / (t * t + 1) ** 2, rel=1e-5)
    assert slope <= rules.stability(0.0, rho, 1.0)


@pytest.mark.parametrize("rho", [0.0, 0, -1.0, NAN, INF, -INF])
def test_stability_without_a_regularizer_is_refused(rho):
    with pytest.raises(ValueError, match=r"regularizer=.* must be in \(0, ∞\)"):
        rules.stability(0.5, rho, 1.0)


def test_stability_does_not_hide_an_infinite_regularizer():
    """A Python float raises; an array, a tensor or a tracer must not give 1.5 β, as if ‖a‖ did not matter."""
    with np.errstate(all="ignore"):
        assert not np.isfinite(rules.stability(0.5, np.array([INF]), 1.0)).any()


# ------------------------------------------------------------------------------------- what the rules are optimal for


def _random_gradients(seed, size=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=size), rng.normal(size=size) * 10.0 ** rng.uniform(-1, 1)


#: Moderate parameters; value barriers on both sides of their target.
MODERATE = {
    "barrier": 0.4,
    "regularizer": 0.7,
    "penalty": 2.5,
    "lower_value": 1.3,
    "target": 0.2,
    "rate": 0.9,
}


def _moderate(name, seed):
    rng = np.random.default_rng(1000 + seed)
    p = {n: MODERATE[n] * float(rng.uniform(0.2, 2)) for n in ROWS[name].parameters}
    if "target" in p and seed % 3 == 0:
        p["target"] = p["lower_value"] + 1.0
    return p


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", BARRIERS)
def test_multiplier_maximises_the_dual_with_quadratic_slack(name, seed):
    """λ = argmax over λ ≥ 0 of min_d ½‖a−d‖² + λ(φ − ⟨b,d⟩) − rλ²/2: the paper's (projection_mult) where r = 0.

    In rational arithmetic λ̂ is as good as scipy's maximiser up to (gg+r)/2 · (error of λ̂)²; and scipy, whose search
    stops at √ε, finds the same λ to 1e-6.
    """
    a, b = _random_gradients(seed)
    p = _moderate(name, seed)
    row, exact = ROWS[name], exactly(p)
    gg = dot(b, b)
    phi, slack = row.threshold(gg, **exact), row.slack(**exact)

    def dual(lam):
        d = along(a, lam, b)  # the inner minimiser
        moved = along(d, -1, a)
        return dot(moved, moved) / 2 + lam * (phi - dot(b, d)) - slack * lam**2 / 2

    lam = Fraction(rules.RULES[name](*scalars(a, b), **p))
    found = minimize_scalar(
        lambda z: -float(dual(Fraction(z))),
        bounds=(0, 10 + 2 * float(lam)),
        method="bounded",
        options={"xatol": 1e-10},
    )
    error = (
        gamma(row.roundings + 2)
        * (row.size(gg, **exact) + abs(dot(a, b)))
        / (gg + slack)
    )
    assert dual(lam) >= dual(Fraction(found.x)) - (gg + slack) / 2 * error**2
    assert float(lam) == pytest.approx(found.x, abs=1e-6 * (1 + float(lam)))


@pytest.mark.parametrize("seed", range(12))
def test_dbgd_direction_is_the_projection(seed):
    """d is the nearest point to a of {d : ⟨b, d⟩ ≥ β‖b‖²}: it lies there, and ⟨a − d, y − d⟩ ≤ 0 for every y there."""
    a, b = _random_gradients(seed)
    beta, rng = 0.6, np.random.default_rng(seed)
    gg = dot(b, b)
    lam = Fraction(rules.dbgd(*scalars(a, b), barrier=beta))
    d = along(a, lam, b)
    lost = gamma(5) * (Fraction(beta) * gg + abs(dot(a, b)))
    assert dot(b, d) >= Fraction(beta) * gg - lost
    if dot(a, b) > Fraction(beta) * gg:
        assert lam == 0
    for _ in range(50):
        z = [Fraction(x) for x in rng.normal(scale=3, size=3)]
        lift = max(Fraction(0), Fraction(beta) * gg - dot(b, z)) / gg
        y = along(z, lift, b)  # on the right side, often on the border
        assert dot(along(a, -1, d), along(y, -1, d)) <= lam * lost


@pytest.mark.parametrize("seed", range(12))
def test_penalized_direction_minimises_the_penalised_objective(seed):
    """d = argmin ½‖d−a‖² + (μ/2)[β(gg+γ) − ⟨b,d⟩]₊²: along b by scalar minimisation, and in every other direction."""
    a, b = _random_gradients(seed)
    beta, gam, mu = 0.8, 0.6, 1.7
    rng = np.random.default_rng(seed)
    gg = dot(b, b)
    phi = Fraction(beta) * (gg + Fraction(gam))

    def objective(d):
        moved = along(d, -1, a)
        return (
            dot(moved, moved) / 2
            + Fraction(mu) / 2 * max(Fraction(0), phi - dot(b, d)) ** 2
        )

    lam = rules.penalized(*scalars(a, b), barrier=beta, regularizer=gam, penalty=mu)
    found = minimize_scalar(
        lambda t: float(objective(along(a, t, b))), bracket=(0.0, 1.0 + lam), tol=1e-12
    )
    assert lam == pytest.approx(
        found.x, abs=1e-6 * (1 + lam)
    )  # scipy cannot see beyond √ε
    # The Hessian is at most 1 + μ gg along b, so an error e of λ̂ costs at most gg (1 + μ gg) e² / 2.
    error = gamma(8) * (phi + abs(dot(a, b))) / (gg + 1 / Fraction(mu))
    allowed = gg * (1 + Fraction(mu) * gg) / 2 * error**2
    best = objective(along(a, lam, b))
    assert best <= objective(along(a, found.x, b)) + allowed
    for scale in (1e-8, 1e-4, 1.0):
        for _ in range(20):
            other = along(along(a, lam, b), scale, rng.normal(size=3))
            assert best <= objective(other) + allowed


# ------------------------------------------------------------------------------------------------------------ limits


@MANY
@given(fg=KINDS["real"], gg=positive, beta=positive)
def test_without_a_regularizer_the_stochastic_rules_are_dbgd(fg, gg, beta):
    """ρ → 0: equal at ρ = 0, and |λ_ρ − λ₀| = λ₀ ρ/(gg+ρ) for SDBGD on the way there."""
    zero = rules.dbgd(fg, gg, beta)
    assert rules.sdbgd(fg, gg, beta, 0.0) == rules.sdbpg(fg, gg, beta, 0.0) == zero
    for power in (0, 10, 20, 40):
        rho = gg * 2.0**-power
        difference = Fraction(zero) - Fraction(rules.sdbgd(fg, gg, beta, rho))
        wanted = ROWS["dbgd"].exact(
            Fraction(fg), Fraction(gg), barrier=Fraction(beta)
        ) / (2**power + 1)
        magnitude = (Fraction(beta) * Fraction(gg) + abs(Fraction(fg))) / Fraction(gg)
        assert abs(difference - wanted) <= gamma(7) * magnitude  # the roundings of both


@MANY
@given(
    fg=KINDS["real"], gg=KINDS["nonnegative"], beta=positive, power=st.integers(-40, 40)
)
def test_penalized_with_gamma_and_inverse_penalty_rho_is_sdbpg(fg, gg, beta, power):
    """γ = ρ, 1/μ = ρ: the same number, where 1/μ is exact."""
    rho = 2.0**power
    assert rules.penalized(fg, gg, beta, rho, 1 / rho) == rules.sdbpg(fg, gg, beta, rho)


def test_penalized_defaults_to_penalty_one():
    assert (
        rules.penalized(-1.0, 2.0, 0.5, 1.0)
        == rules.sdbpg(-1.0, 2.0, 0.5, 1.0)
        == 2.5 / 3
    )


@MANY
@given(
    fg=KINDS["real"],
    gg=positive,
    beta=positive,
    rho=KINDS["nonnegative"],
    value=KINDS["real"],
    target=KINDS["real"],
    rate=positive,
)
def test_least_is_the_smaller_of_its_two_barriers(
    fg, gg, beta, rho, value, target, rate
):
    """λ is monotone in φ, so the least barrier gives the least λ: that of `by_value` or that of `sdbgd`, to the bit."""
    both = (
        rules.by_value(fg, gg, value, target, rate, rho),
        rules.sdbgd(fg, gg, beta, rho),
    )
    assert rules.least(fg, gg, beta, value, target, rate, rho) == min(both)


def test_below_its_target_a_value_barrier_lets_f_go():
    assert rules.by_value(0.0, 1.0, lower_value=0.9, target=1.0) == 0
    assert rules.by_value(0.0, 1.0, lower_value=1.5, target=1.0) == 0.5
    assert (
        rules.by_value(0.0, 1.0, lower_value=1.5, target=1.0, rate=4.0, regularizer=1.0)
        == 1.0
    )


@MANY
@given(data=st.data(), factor=st.integers(-30, 30))
def test_dbgd_does_not_depend_on_units(data, factor):
    """f and g in other units: λ(s fg, s² gg, β/s) = λ(fg, gg, β)/s, exactly for s a power of two."""
    fg, gg, beta = data.draw(KINDS["real"]), data.draw(positive), data.draw(positive)
    s = 2.0**factor
    assert rules.dbgd(s * fg, s * s * gg, beta / s) == rules.dbgd(fg, gg, beta) / s
    assert (
        rules.sdbgd(s * fg, s * s * gg, beta / s, s * s * 0.5)
        == rules.sdbgd(fg, gg, beta, 0.5) / s
    )


# ------------------------------------------------------------------------------------------------ the array libraries


@dataclass(frozen=True)
class Backend:
    """How to make a scalar, how to call a rule with scalars, the unit roundoff."""

    make: Callable
    call: Callable
    u: Fraction = U


def _plain(rule, fg, gg, **p):
    return rule(fg, gg, **p)


def _python():
    return Backend(float, _plain)


def _numpy(dtype):
    def call(rule, *args, **p):
        with np.errstate(all="ignore"):
            return rule(*args, **p)

    return Backend(
        lambda v: np.array(v, dtype),
        call,
        Fraction(1, 2**53 if dtype == "float64" else 2**24),
    )


def _torch(dtype):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    return Backend(
        lambda v: torch.tensor(v, dtype=kind),
        _plain,
        Fraction(1, 2**53 if dtype == "float64" else 2**24),
    )


def _jax(dtype, jit):
    jax = pytest.importorskip("jax")
    compiled = cache(jax.jit)
    wide = dtype == "float64"

    def make(v):
        with jax.enable_x64(wide):
            return jax.numpy.asarray(v, dtype)

    def call(rule, fg, gg, **p):
        with jax.enable_x64(wide):
            return (compiled(rule) if jit else rule)(fg, gg, **p)

    return Backend(make, call, Fraction(1, 2**53 if wide else 2**24))


BACKENDS = {
    "python": _python,
    "numpy64": lambda: _numpy("float64"),
    "numpy32": lambda: _numpy("float32"),
    "torch64": lambda: _torch("float64"),
    "torch32": lambda: _torch("float32"),
    "jax64": lambda: _jax("float64", False),
    "jax32": lambda: _jax("float32", False),
    "jit64": lambda: _jax("float64", True),
    "jit32": lambda: _jax("float32", True),
}
backends = pytest.mark.parametrize("library", BACKENDS)


def _random_inputs(name, count, seed=0):
    """Log-uniform over 1e-4 … 1e4 (float32 has room for it), exact in float32, so that all libraries see the same."""
    rng = np.random.default_rng(seed)

    def draw(kind):
        value = 10.0 ** rng.uniform(-4, 4) * (
            1 if kind != "real" else rng.choice([-1, 1])
        )
        return float(np.float32(value))

    for _ in range(count):
        yield (
            draw("real"),
            draw("positive"),
            {n: draw(kind) for n, kind in ROWS[name].parameters.items()},
        )


@backends
@pytest.mark.parametrize(
    "floats", [False, True], ids=["all scalars", "float parameters"]
)
@pytest.mark.parametrize("name", ROWS)
def test_libraries_agree_with_the_formula_and_so_with_one_another(
    name, floats, library
):
    """0-d arrays of every library are within γₙ (that library's u) of the rational value, under jit as well.

    The parameters may be Python floats beside them: that must cost no digits either.
    """
    backend, row = BACKENDS[library](), ROWS[name]
    make = float if floats else backend.make
    bound = gamma(row.roundings, backend.u)
    for fg, gg, p in _random_inputs(name, 40):
        got = backend.call(
            rules.RULES[name],
            backend.make(fg),
            backend.make(gg),
            **{n: make(v) for n, v in p.items()},
        )
        exact = (Fraction(fg), Fraction(gg)), exactly(p)
        difference = abs(Fraction(float(got)) - row.exact(*exact[0], **exact[1]))
        assert difference <= bound * row.magnitude(*exact[0], **exact[1]), (fg, gg, p)


@backends
@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row.reaches_zero])
def test_zero_over_zero_is_zero_in_every_library(name, library):
    backend = BACKENDS[library]()
    zero = backend.make(0.0)
    for fg in (-2.0, 0.0, 3.0):
        p = {
            n: zero if n == "regularizer" else backend.make(1.5)
            for n in ROWS[name].parameters
        }
        assert (
            float(backend.call(rules.RULES[name], backend.make(fg), zero, **p)) == 0.0
        )


# Non-finite inputs. Finite ones are legal, and include zeros: 0 · ∞ must not be lost either.
ZERO_OR = {"positive": (0.5, 2.0), "nonnegative": (0.0, 1.5), "real": (0.0, -2.0, 3.0)}
BAD = (NAN, INF, -INF)


def _choices(name) -> list[tuple[float, ...]]:
    kinds = ["real", "nonnegative", *ROWS[name].parameters.values()]
    return [(*ZERO_OR[kind], *BAD) for kind in kinds]


def _non_finite(name, most=None):
    """All arguments, each finite or not in every combination with at least one non-finite (and `most` at most)."""
    for combination in itertools.product(*_choices(name)):
        bad = sum(not math.isfinite(v) for v in combination)
        if bad and (most is None or bad <= most):
            yield combination


def _sample_of_finite(name, most):
    """As above with one set of finite values and one of zeros where legal: exhaustive in positions, fewer in values."""
    choices = _choices(name)
    for finite in ([c[-4] for c in choices], [c[0] for c in choices]):
        for count in range(1, most + 1):
            for positions in itertools.combinations(range(len(choices)), count):
                for values in itertools.product(BAD, repeat=count):
                    combination = list(finite)
                    for position, value in zip(positions, values, strict=True):
                        combination[position] = value
                    yield tuple(combination)


#: How many arguments may be non-finite at once: all of them, but for the libraries that take 100 µs a call.
AT_ONCE = {"jax64": 2, "jax32": 2, "torch32": 3, "torch64": 3, "jit32": 3, "jit64": 3}


# XLA rewrites x * (x > 0) to select(x > 0, x, 0), which loses a NaN or −∞ in x: hence the jax and jit cases here.


@backends
@pytest.mark.parametrize("name", ROWS)
def test_a_non_finite_input_never_gives_a_finite_multiplier(name, library):
    backend = BACKENDS[library]()
    names = list(ROWS[name].parameters)
    scalar = cache(
        lambda text: backend.make(float(text))
    )  # by text: NaN is not equal to itself
    for values in _sample_of_finite(name, AT_ONCE.get(library, 2 + len(names))):
        fg, gg, *rest = (scalar(str(v)) for v in values)
        got = float(
            backend.call(
                rules.RULES[name], fg, gg, **dict(zip(names, rest, strict=True))
            )
        )
        assert not math.isfinite(got), values


@pytest.mark.parametrize(
    "library", ["python", "numpy64", "numpy32", "torch64", "torch32", "jit64", "jit32"]
)
@pytest.mark.parametrize("name", ROWS)
def test_non_finite_inputs_in_every_combination(name, library):
    """The whole grid, finite values and zeros included: as one array where the library has arrays."""
    backend, names = BACKENDS[library](), list(ROWS[name].parameters)
    grid = np.array(list(_non_finite(name)))
    if library == "python":
        found = [
            rules.RULES[name](fg, gg, **dict(zip(names, rest, strict=True)))
            for fg, gg, *rest in grid.tolist()
        ]
    else:
        fg, gg, *rest = (backend.make(column.tolist()) for column in grid.T)
        found = backend.call(
            rules.RULES[name], fg, gg, **dict(zip(names, rest, strict=True))
        )
    found = np.asarray(found)
    assert found.shape == (len(grid),)
    assert not np.isfinite(found).any(), grid[np.isfinite(found)][:5]


def test_multiplier_itself_lets_no_infinity_through():
    for values in itertools.product(
        (0.0, -2.0, 3.0, *BAD),
        (0.0, 1.5, *BAD),
        (0.0, -2.0, 3.0, *BAD),
        (0.0, 1.5, *BAD),
    ):
        if not all(map(math.isfinite, values)):
            assert not math.isfinite(rules.multiplier(*values)), values


@pytest.mark.parametrize("name", ROWS)
def test_gradients_of_rules_are_right_away_from_kinks(name):
    """jax.grad through every argument: finite, and equal to a central difference of the rational formula.

    With step h = 1e-8 relative the difference quotient errs by O(h²) ≈ 1e-16 relative to the terms, and autodiff by a
    few roundings: 1e-9 is far above both.
    """
    jax = pytest.importorskip("jax")
    row, h = ROWS[name], Fraction(1, 10**8)
    names = list(row.parameters)
    active = inactive = 0
    with jax.enable_x64(True):
        gradient = jax.jit(
            jax.grad(
                lambda v: rules.RULES[name](
                    v[0], v[1], **dict(zip(names, v[2:], strict=True))
                )
            )
        )
        for fg, gg, p in _random_inputs(name, 150, seed=3):
            point = [Fraction(v) for v in (fg, gg, *p.values())]

            def value(q):
                return row.exact(q[0], q[1], **dict(zip(names, q[2:], strict=True)))

            if row.threshold is not None:
                phi = row.threshold(point[1], **exactly(p))
                if abs(phi - point[0]) < Fraction(1, 1000) * (abs(phi) + abs(point[0])):
                    continue  # near the kink of the positive part
                active, inactive = (
                    active + (phi > point[0]),
                    inactive + (phi <= point[0]),
                )
            got = np.asarray(gradient(jax.numpy.asarray([float(v) for v in point])))
            assert np.isfinite(got).all()
            for i, v in enumerate(point):
                up, down = list(point), list(point)
                up[i], down[i] = v * (1 + h), v * (1 - h)
                wanted = (value(up) - value(down)) / (2 * h * v)
                size = row.magnitude(point[0], point[1], **exactly(p)) / abs(v) + abs(
                    wanted
                )
                assert (
                    abs(Fraction(float(got[i])) - wanted) <= Fraction(1, 10**9) * size
                ), (i, fg, gg, p)
    if row.threshold is not None:
        assert active >= 5
        assert inactive >= 5


@pytest.mark.parametrize("name", ROWS)
def test_gradient_where_the_denominator_vanishes_is_finite(name):
    jax = pytest.importorskip("jax")
    p = {n: 0.0 if n == "regularizer" else 1.0 for n in ROWS[name].parameters}
    slopes = jax.grad(lambda fg, gg: rules.RULES[name](fg, gg, **p), argnums=(0, 1))(
        -1.0, 0.0
    )
    assert all(math.isfinite(float(s)) for s in slopes)


@pytest.mark.parametrize(
    "tensors", [False, True], ids=["float parameters", "tensor parameters"]
)
@pytest.mark.parametrize("device", ["cpu", "meta", "cuda"])
def test_torch_scalars_stay_on_their_device_and_keep_their_dtype(device, tensors):
    """A meta tensor holds no number: a rule that looked at one (a branch, an .item(), a copy) would raise."""
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    for name, dtype in itertools.product(
        ROWS, (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    ):

        def scalar(value, dtype=dtype):
            return torch.tensor(value, dtype=dtype, device=device)

        p = {n: scalar(1.5) if tensors else 1.5 for n in ROWS[name].parameters}
        got = rules.RULES[name](scalar(-1.0), scalar(2.0), **p)
        assert (got.device.type, got.dtype, got.shape) == (device, dtype, ()), name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ROWS)
def test_numpy_arrays_are_a_value_per_run(name, dtype):
    """Shape and dtype stay, and each entry is what the rule gives for that run alone, to the bit."""
    inputs = list(_random_inputs(name, 20, seed=5))
    p = inputs[0][2]
    fg, gg = (np.array([row[i] for row in inputs], dtype).reshape(4, 5) for i in (0, 1))
    got = rules.RULES[name](fg, gg, **p)
    assert (got.shape, got.dtype) == ((4, 5), dtype)
    alone = [
        rules.RULES[name](f, g, **p)
        for f, g in zip(fg.ravel(), gg.ravel(), strict=True)
    ]
    assert got.ravel().tolist() == [float(v) for v in alone]


def test_rules_import_nothing():
    """The formula needs no library: type hints from the standard library are all that rules.py imports."""
    imported = set()
    for node in ast.walk(ast.parse(inspect.getsource(rules))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert imported <= {"collections.abc", "typing"}
