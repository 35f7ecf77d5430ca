"""The multiplier λ from two scalars: every dynamic-barrier rule is one formula.

A method moves along d = ∇f + λ∇g, and λ depends on the gradients only through fg = ⟨∇f, ∇g⟩ and gg = ‖∇g‖²::

    λ = [φ − fg]₊ / (gg + r)          a barrier φ, a slack r          (:func:`multiplier`)

========== ===================== ======= =====================================================
rule       φ                     r       where it comes from
========== ===================== ======= =====================================================
dbgd       β gg                  0       projection of ∇f on {d : ⟨∇g, d⟩ ≥ β gg}
sdbpg      β (gg + ρ)            ρ       Ahmadi et al. 2026
sdbgd      β gg                  ρ       the same projection with a quadratic slack (the paper)
penalized  β (gg + γ)            1/μ     PR-SDBPG; **our reconstruction**, see the docs
by_value   α (g − target)        ρ       keeps g near a target that a user can state
least      min{by_value, β gg}   ρ       Gong & Liu 2021
========== ===================== ======= =====================================================

A rule with a memory (an average of inner products, a dual variable) is a
:class:`tiebreak.stateful_rules.StatefulRule`.

The functions use only arithmetic and comparisons, so the same code runs on Python floats, NumPy arrays (a value per
run), torch 0-d tensors and JAX tracers; nothing is imported. Defined at every corner: gg + r = 0 gives λ = 0, and a
NaN or an infinity among the inputs never comes out as a finite number.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

#: A float, a NumPy array, a torch tensor or a JAX tracer. No common protocol exists for the four; hence Any.
Scalar: TypeAlias = Any
#: ``rule(fg, gg, …)``: the further arguments are taken by name from the schedule (``barrier``, ``regularizer``, …).
Rule: TypeAlias = Callable[..., Scalar]


def multiplier(
    fg: Scalar, gg: Scalar, threshold: Scalar, slack: Scalar = 0.0
) -> Scalar:
    """λ = [φ − fg]₊ / (gg + r), and 0 where gg + r = 0: the formula behind every rule.

    Parameters
    ----------
    fg, gg : scalar
        ⟨∇f, ∇g⟩ and ‖∇g‖².
    threshold : scalar
        φ, the descent asked of g: with r = 0 the direction satisfies ⟨∇g, d⟩ ≥ φ.
    slack : scalar
        r ≥ 0, what bounds λ where ∇g is small.

    Examples
    --------
    >>> multiplier(fg=-1.0, gg=2.0, threshold=1.0)
    1.0
    >>> multiplier(fg=3.0, gg=2.0, threshold=1.0)  # f's own gradient already descends on g
    0.0
    """
    gap = threshold - fg
    denominator = gg + slack
    # `gap * (gap > 0)` is the positive part in every library.
    numerator = gap * (gap > 0) * (denominator != 0)
    # The differences are 0 for a number and NaN for anything else: an infinite denominator would divide to λ = 0, and
    # XLA makes a selection of the product above, which loses a NaN.
    return (
        numerator / (denominator + (denominator == 0))
        + (denominator - denominator)
        + (gap - gap)
    )


def dbgd(fg: Scalar, gg: Scalar, barrier: Scalar) -> Scalar:
    """λ = [β gg − fg]₊ / gg, deterministic dynamic barrier; 0 where gg = 0.

    Examples
    --------
    >>> dbgd(fg=-1.0, gg=2.0, barrier=0.5)
    1.0
    >>> dbgd(fg=0.0, gg=0.0, barrier=0.5)
    0.0
    """
    return multiplier(fg, gg, barrier * gg)


def sdbpg(fg: Scalar, gg: Scalar, barrier: Scalar, regularizer: Scalar) -> Scalar:
    """λ = [β (gg+ρ) − fg]₊ / (gg+ρ), numerator and denominator regularized (Ahmadi et al. 2026).

    Examples
    --------
    >>> sdbpg(fg=-1.0, gg=2.0, barrier=0.5, regularizer=2.0)
    0.75
    """
    return multiplier(fg, gg, barrier * (gg + regularizer), regularizer)


def sdbgd(fg: Scalar, gg: Scalar, barrier: Scalar, regularizer: Scalar) -> Scalar:
    """λ = [β gg − fg]₊ / (gg+ρ), the paper's rule: only the denominator is regularized.

    Examples
    --------
    >>> sdbgd(fg=-1.0, gg=2.0, barrier=0.5, regularizer=2.0)
    0.5
    """
    return multiplier(fg, gg, barrier * gg, regularizer)


def penalized(
    fg: Scalar, gg: Scalar, barrier: Scalar, regularizer: Scalar, penalty: Scalar = 1.0
) -> Scalar:
    """λ = [β (gg+γ) − fg]₊ / (gg + 1/μ), the PR rule as we reconstruct it.

    The minimiser of ½‖d−∇f‖² + (μ/2)[β(gg+γ) − ⟨∇g, d⟩]₊²: `regularizer` is γ and `penalty` is μ. The original is not
    available to us; at γ = μ = 1, the only values the paper uses, this is `sdbpg` with ρ = 1.

    Examples
    --------
    >>> penalized(fg=-1.0, gg=2.0, barrier=0.5, regularizer=1.0, penalty=0.5)
    0.625
    """
    slack = 1 / penalty + (penalty - penalty)  # μ = ∞ must not pass as a slack of 0
    return multiplier(fg, gg, barrier * (gg + regularizer), slack)


def by_value(
    fg: Scalar,
    gg: Scalar,
    lower_value: Scalar,
    target: Scalar,
    rate: Scalar = 1.0,
    regularizer: Scalar = 0.0,
) -> Scalar:
    """λ = [α (g − target) − fg]₊ / (gg+ρ): g decreases at `rate` α towards `target`, and below it f is free.

    Examples
    --------
    >>> by_value(fg=0.0, gg=2.0, lower_value=3.0, target=1.0)
    1.0
    >>> by_value(fg=0.0, gg=2.0, lower_value=0.5, target=1.0)
    0.0
    """
    return multiplier(fg, gg, rate * (lower_value - target), regularizer)


def least(
    fg: Scalar,
    gg: Scalar,
    barrier: Scalar,
    lower_value: Scalar,
    target: Scalar,
    rate: Scalar = 1.0,
    regularizer: Scalar = 0.0,
) -> Scalar:
    """φ = min{α (g − target), β gg}: the weaker of the value barrier and the gradient barrier (Gong & Liu 2021).

    Examples
    --------
    >>> least(fg=0.0, gg=2.0, barrier=0.5, lower_value=9.0, target=1.0)  # min{8, 1} / 2
    0.5
    """
    # 0 · gg gives a Python float gg's type: torch would make float32 of a float times a comparison.
    value = rate * (lower_value - target) + 0 * gg
    gradient = barrier * gg
    # Selecting by a product is exact in every library; the differences preserve NaN and infinity.
    smaller = value * (value <= gradient) + gradient * (gradient < value)
    return multiplier(
        fg, gg, smaller + (value - value) + (gradient - gradient), regularizer
    )


def constant(fg: Scalar, gg: Scalar, barrier: Scalar) -> Scalar:
    """λ = β: gradient descent on f + βg, the plain penalty baseline.

    Examples
    --------
    >>> constant(fg=-1.0, gg=2.0, barrier=0.5)
    0.5
    """
    return (
        barrier + 0 * fg + 0 * gg
    )  # the zeros give λ the shape of a value per run, and keep NaN a NaN


def stability(barrier: Scalar, regularizer: Scalar, upper_norm: Scalar) -> Scalar:
    """3β/2 + 2‖∇f‖/√ρ: how much the SDBGD direction can change per unit of change in ∇g (the stability lemma).

    ‖D(a,b) − D(a',b')‖ ≤ ‖a−a'‖ + `stability(β, ρ, ‖a‖)` ‖b−b'‖.

    Examples
    --------
    >>> stability(barrier=0.5, regularizer=4.0, upper_norm=1.0)
    1.75
    """
    if isinstance(regularizer, (int, float)) and not 0 < regularizer < float("inf"):
        raise ValueError(
            f"regularizer={regularizer!r} must be in (0, ∞): without it the direction is not Lipschitz in ∇g"
        )
    return (
        1.5 * barrier + 2 * upper_norm / regularizer**0.5 + (regularizer - regularizer)
    )


#: Every rule by name.
RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (dbgd, sdbpg, sdbgd, penalized, by_value, least, constant)
}
