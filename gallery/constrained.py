"""The literature's own methods for the dictionary, on its constraint sets: projections, and conditional gradients.

Written from the papers' formulas, for comparison with the solver, which sees free variables instead. Gradients are
exact, so a step costs all old and all new samples. Each yields the atoms and the coefficients after every step, without
end, and begins at the data's start.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gallery.problems.dictionary import STRETCH, DictionaryData
from tiebreak import rules

Values = NDArray[np.float64]
Pair: TypeAlias = tuple[Values, Values]

__all__ = [
    "METHODS",
    "cg_bio",
    "left_over",
    "onto_one_norm_ball",
    "projected_a_irg",
    "projected_dbgd",
]


def gradients(
    data: DictionaryData, atoms: Values, coefficients: Values
) -> tuple[Values, Values, Values]:
    """∇g and ∇f with respect to the atoms, and ∇f with respect to the coefficients."""
    old = (atoms @ data.coefficients - data.old) / data.old.shape[1]
    new = (atoms @ coefficients - data.new) / data.new.shape[1]
    return old @ data.coefficients.T, new @ coefficients.T, atoms.T @ new


def onto_one_norm_ball(points: Values, radius: float) -> Values:
    """The nearest points (columns) with ‖·‖₁ ≤ radius: what is above a threshold, by that threshold less."""
    ordered = -np.sort(-np.abs(points), axis=0)
    surplus = np.cumsum(ordered, axis=0) - radius
    count = np.sum(ordered * np.arange(1, len(points) + 1)[:, None] > surplus, axis=0)
    threshold = np.maximum(0, surplus[count - 1, np.arange(points.shape[1])] / count)
    found: Values = np.sign(points) * np.maximum(np.abs(points) - threshold, 0)
    return found


def left_over(atoms: Values, samples: Values, radius: float, steps: int = 300) -> float:
    """What is left of samples with the best coefficients for these atoms: min over ‖x‖₁ ≤ radius of ½ mean ‖b − Dx‖².

    Accelerated projected gradients, for samples that nothing was fitted to.
    """
    coefficients = ahead = np.zeros((atoms.shape[1], samples.shape[1]))
    step, momentum = 1 / max(float(np.linalg.norm(atoms, 2)) ** 2, 1e-12), 1.0
    for _ in range(steps):
        moved = onto_one_norm_ball(
            ahead - step * atoms.T @ (atoms @ ahead - samples), radius
        )
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = moved + (momentum - 1) / following * (moved - coefficients)
        coefficients, momentum = moved, following
    return float(np.sum((atoms @ coefficients - samples) ** 2) / samples.shape[1] / 2)


def project(data: DictionaryData, atoms: Values, coefficients: Values) -> Pair:
    """The nearest feasible pair."""
    return atoms / np.maximum(1, np.linalg.norm(atoms, axis=0)), onto_one_norm_ball(
        coefficients, data.radius
    )


def projected_a_irg(data: DictionaryData, step: float, share: float) -> Iterator[Pair]:
    """a-IRG (Kaushik and Yousefian 2021); coefficients with steps ten times as long, as everywhere here."""
    atoms, coefficients = data.decode(data.x0)
    k = 0
    while True:
        k += 1
        gamma, eta = step * k**-0.5, share * k**-0.25
        lower, upper, slope = gradients(data, atoms, coefficients)
        atoms, coefficients = project(
            data,
            atoms - gamma * (lower + eta * upper),
            coefficients - STRETCH**2 * gamma * eta * slope,
        )
        yield atoms, coefficients


def projected_dbgd(data: DictionaryData, step: float, barrier: float) -> Iterator[Pair]:
    """DBGD (Gong, Liu and Liu 2021) with a projection after the step."""
    atoms, coefficients = data.decode(data.x0)
    k = 0
    while True:
        k += 1
        eta = step * k**-0.25
        lower, upper, slope = gradients(data, atoms, coefficients)
        weight: Any = rules.dbgd(
            float(np.sum(lower * upper)), float(np.sum(lower**2)), barrier
        )
        atoms, coefficients = project(
            data,
            atoms - eta * (upper + weight * lower),
            coefficients - STRETCH**2 * eta * slope,
        )
        yield atoms, coefficients


def cg_bio(data: DictionaryData, step: float, power: float) -> Iterator[Pair]:
    """CG-BiO (Jiang et al. 2023): conditional gradients on f, with a cut that keeps g's linear model at its start."""
    atoms, coefficients = data.decode(data.x0)
    columns, k = np.arange(coefficients.shape[1]), 0
    while True:
        k += 1
        share = min(1.0, step * k**-power)
        lower, upper, slope = gradients(data, atoms, coefficients)
        room = data.lower_optimum - data.lower(atoms) + float(np.sum(lower * atoms))
        target = cut(upper, lower, room)
        largest = np.abs(slope).argmax(axis=0)
        atoms, coefficients = (
            (1 - share) * atoms + share * target,
            (1 - share) * coefficients,
        )
        coefficients[largest, columns] -= (
            share * data.radius * np.sign(slope[largest, columns])
        )
        yield atoms, coefficients


def cut(upper: Values, lower: Values, room: float) -> Values:
    """The atoms in the unit ball with the least ⟨upper, ·⟩ among those with ⟨lower, ·⟩ ≤ room.

    They are −c/‖c‖ with c = upper + weight · lower, and the weight, 0 or where the bound is met, comes by bisection.
    """

    def best(weight: float) -> Values:
        c = upper + weight * lower
        norms = np.linalg.norm(c, axis=0)
        found: Values = -c / np.where(norms > 0, norms, 1)
        return found

    def over(weight: float) -> bool:
        return float(np.sum(lower * best(weight))) > room

    if not over(0.0):
        return best(0.0)
    low, high = 0.0, 1.0
    while over(high) and high < 1e12:
        low, high = high, 4 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if over(middle) else (low, middle)
    return best(high)


#: name → (the method, its steps, its other constant): what it is tuned over.
METHODS: Mapping[
    str,
    tuple[
        Callable[[DictionaryData, float, float], Iterator[Pair]],
        tuple[float, ...],
        tuple[float, ...],
    ],
]
METHODS = {
    "a-IRG, projected": (projected_a_irg, (8, 32, 128), (0.03, 0.1, 0.3, 1, 3)),
    "DBGD, projected": (projected_dbgd, (0.1, 0.4, 1.6), (0.3, 1, 3, 10, 30)),
    "CG-BiO": (cg_bio, (0.05, 0.2, 0.6), (0.3, 0.4, 0.5, 0.65, 0.8)),
}
