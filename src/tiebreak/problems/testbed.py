"""A test bed: problems with known constants and solutions, by name, in any dimension and with five kinds of noise.

>>> named("sphere-100-heavy").constants.L_g
1.0

Both objectives grow like the dimension, and their gradients like its square root D = √(d/2), as does the noise. So in
units of D the same name is the same task in 2 dimensions and in 10⁴, and d = 2 has the paper's f.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from tiebreak.checks import nearest, nonnegative, whole
from tiebreak.problems import landscapes
from tiebreak.problems.landscapes import Landscape, Values
from tiebreak.problems.noises import NOISES, noisy
from tiebreak.problems.paper import paper
from tiebreak.problems.problem import Problem, constants_at
from tiebreak.problems.random import random_problem

#: f, g, the start and the solution.
Parts: TypeAlias = tuple[Landscape, Landscape, Values, Values]

MAX_DIMENSION = 10**6
#: If every coordinate has a wave for each term.
MAX_SAMPLED_DIMENSION = 10**4


def islands(d: int, m: int, size: float) -> Parts:
    """Disconnected argmin: a lattice of subspaces 2π apart, and most starts are in the basin of a wrong one."""
    leading = _between(4, 8, m)
    # f grows with the distance to c.
    nearest_minimisers = 2 * math.pi * np.rint(leading / (2 * math.pi))
    rest = np.ones(d - m)
    f = landscapes.pull(np.append(leading, rest), size)
    solution = np.append(nearest_minimisers, rest)
    return f, landscapes.waves(m), _halves(d, m, 2.0, -1.0), solution


def valley(d: int, m: int, size: float) -> Parts:
    """Argmin a winding manifold of half the dimension, y = sin x: f must be followed around bends."""
    rest = d - 2 * m
    # f's center is above a crest: no point of the curve is nearer.
    f = landscapes.pull(np.repeat([math.pi / 2, 2.0, 1.0], (m, m, rest)), size)
    start = np.append(_between(-2, -1, m), np.repeat([1.0, -1.0], (m, rest)))
    solution = _halves(d, m, math.pi / 2, 1.0)
    return f, landscapes.sine(m), start, solution


def sphere(d: int, m: int, size: float) -> Parts:
    """Argmin a sphere; the start is on its far side, where f pulls straight through the peak inside."""
    ahead, aside = _directions(d)
    f = landscapes.pull(3 * size * ahead, size)
    start = size * (0.5 * aside - ahead)
    return f, landscapes.rings(size), start, math.sqrt(3) * size * ahead


def plateau(d: int, m: int, size: float) -> Parts:
    """Argmin a ball: g says nothing inside it, and the solution is on its boundary."""
    ahead, aside = _directions(d)
    f = landscapes.pull(3 * size * ahead, size)
    start = size * (2 * aside - ahead)
    return f, landscapes.ball(size), start, size * ahead


def flat(d: int, m: int, size: float) -> Parts:
    """A degenerate g, of fourth order: its gradient tells little of the distance to its minimisers."""
    f = landscapes.pull(np.ones(d), size)
    return f, landscapes.fourth(m), _halves(d, m, 2.0, -1.0), _halves(d, m, 0.0, 1.0)


def saddle(d: int, m: int, size: float) -> Parts:
    """2^m wells with ridges between them; the start is on the wrong side of every ridge, close to its top."""
    signs = np.resize([1.0, -1.0], m)
    rest = np.ones(d - m)
    f = landscapes.pull(np.append(0.5 * signs, rest), size)
    # Of ±√3, the one on f's side is nearer.
    solution = np.append(math.sqrt(3) * signs, rest)
    return f, landscapes.wells(m), np.append(-0.1 * signs, -rest), solution


def conditioned(d: int, m: int, size: float) -> Parts:
    """Curvatures of g from 1 to 1/1000 and of f from 1 to 1/100: f pulls hardest where g holds least."""
    scales = np.append(np.geomspace(0.01, 1, m), np.geomspace(0.01, 1, d - m))
    f = landscapes.pull(np.ones(d), size, scales)
    g = landscapes.weighted(np.geomspace(1, 1e-3, m) if m > 1 else np.array([1e-3]))
    return f, g, _halves(d, m, 2.0, -1.0), _halves(d, m, 0.0, 1.0)


def stiff(d: int, m: int, size: float) -> Parts:
    """A gorge with d − 1 walls: f leans on them, and along the floor g falls gently and long to its minimisers."""
    # f's center is far beyond the walls, not along a diagonal, and f does not change along the floor.
    center = np.append(np.resize([10.0, 5.0], d - 1), 0.0)
    f = landscapes.pull(center, 1.0, np.append(np.ones(d - 1), 0.0))
    start = np.append(np.zeros(d - 1), 40.0)
    return f, landscapes.gorge(d - 1, 0.02, 0.5), start, np.zeros(d)


def _halves(d: int, m: int, first: float, second: float) -> Values:
    """The first number in m coordinates, and the second in the others."""
    return np.repeat([first, second], (m, d - m))


def _between(low: float, high: float, count: int) -> Values:
    """As many numbers evenly between two, the middle for one."""
    return low + (high - low) * (np.arange(count) + 0.5) / count


def _directions(d: int) -> tuple[Values, Values]:
    """Two unit vectors, with a right angle between them."""
    aside = np.resize([1.0, -1.0], d)
    aside -= aside.mean()
    return np.ones(d) / math.sqrt(d), aside / np.linalg.norm(aside)


_PARTS: Mapping[str, Callable[..., Parts]] = {
    "islands": islands,
    "valley": valley,
    "sphere": sphere,
    "plateau": plateau,
    "flat": flat,
    "saddle": saddle,
    "conditioned": conditioned,
    "stiff": stiff,
}
#: Every family of problems, and its default dimension.
FAMILIES: Mapping[str, int] = {
    "paper": 2,
    "random": 5,
    **dict.fromkeys(_PARTS, 2),
    "conditioned": 10,
}
#: The standard selection: every family but "stiff", which is made for one question; most kinds of noise, 2 to 10⁴
#: dimensions.
TESTBED: tuple[str, ...] = (
    "paper",
    "islands-2",
    "islands-100-heavy",
    "valley-2",
    "valley-1000",
    "valley-20-multiplicative",
    "sphere-10",
    "sphere-10000",
    "plateau-10",
    "plateau-100-heavy",
    "flat-10",
    "flat-100-multiplicative",
    "saddle-2",
    "saddle-100-multiplicative",
    "saddle-10-heavy",
    "conditioned-10",
    "conditioned-1000",
    "conditioned-20-heavy",
    "random-10",
    "random-20-multiplicative",
)


def named(
    name: str,
    *,
    dimension: int | None = None,
    noise: str | None = None,
    sigma: float | None = None,
    sigma_f: float | None = None,
    sigma_g: float | None = None,
) -> Problem:
    """The problem of this name: a family, and if wanted a dimension and a kind of noise, "valley-100-heavy".

    Parameters
    ----------
    name : str
        One of :data:`FAMILIES`, alone or with dimension and noise behind it.
    dimension : int, optional
        From 2 to 10⁶; said here or in the name. The paper's problem has two.
    noise : {"gaussian", "multiplicative", "heavy", "phase", "sampled"}, optional
        Normal in every coordinate, the default; in proportion to the gradient; Student's t with three degrees of
        freedom; random waves, which change with x (ℓ = 1); or a finite sum of which terms are sampled (ℓ = 1; at most
        10⁴ dimensions). Said here or in the name. The paper's problem has the first, random ones the first two.
    sigma : float, optional
        Strength of the noise, ≥ 0: per coordinate, 0.5 if none is said; relative, 1, where it is multiplicative.
        Random problems have their own.
    sigma_f, sigma_g : float, optional
        That of one level, where it differs.

    Examples
    --------
    >>> named("valley", dimension=4).solution.round(2)
    array([1.57, 1.57, 1.  , 1.  ])
    >>> named("valey")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: name='valey' must begin with one of paper, random, islands, valley, sphere, plateau, flat, saddle, ...
    """
    family, size, kind = _parsed(name)
    size = _either("dimension", size, dimension)
    kind = _either("noise", kind, noise)
    d = whole("dimension", FAMILIES[family] if size is None else size)
    kind = "gaussian" if kind is None else kind
    if kind not in NOISES:
        raise ValueError(f"noise={kind!r} must be one of {', '.join(NOISES)}")
    if not 2 <= d <= MAX_DIMENSION:
        raise ValueError(f"dimension={d} must be from 2 to {MAX_DIMENSION}")
    if kind == "sampled" and d > MAX_SAMPLED_DIMENSION:
        raise ValueError(
            f"dimension={d} must be at most {MAX_SAMPLED_DIMENSION} with noise='sampled': its terms are kept in memory"
        )
    strengths = (("sigma", sigma), ("sigma_f", sigma_f), ("sigma_g", sigma_g))
    sigmas = {word: value for word, value in strengths if value is not None}
    for word, value in sigmas.items():
        nonnegative(word, value)
    default = sigmas.get("sigma", NOISES[kind])
    upper_sigma = sigmas.get("sigma_f", default)
    lower_sigma = sigmas.get("sigma_g", default)
    if family == "paper":
        if d != 2 or kind != "gaussian":
            raise ValueError(
                f"dimension={d}, noise={kind!r}: the paper's problem has dimension 2 and Gaussian noise"
            )
        return paper(sigma_f=upper_sigma, sigma_g=lower_sigma)
    title = f"{family}-{d}" + f"-{kind}" * (kind != "gaussian")
    if family == "random":
        words = "".join(f", {word}={value!r}" for word, value in sigmas.items())
        if words or kind not in ("gaussian", "multiplicative"):
            raise ValueError(
                f"noise={kind!r}{words}: random problems have noise of their own strength, and none with heavy "
                "tails, waves or sampled terms"
            )
        problem = random_problem(d, 0, "additive" if kind == "gaussian" else kind)
        return replace(problem, name=title)
    m = d // 2
    f, g, start, solution = _PARTS[family](d, m, math.sqrt(m))
    upper, total_f = noisy(kind, f, d, upper_sigma)
    lower, total_g = noisy(kind, g, d, lower_sigma)
    constants = constants_at(start, f, g, f.slope, total_f, total_g)
    return Problem(title, upper, lower, start, solution, constants)


def describe(family: str) -> str:
    """What a family is for, in a line."""
    sources = {"paper": paper, "random": random_problem, **_PARTS}
    return (inspect.getdoc(sources[family]) or "").partition("\n")[0]


def _parsed(name: str) -> tuple[str, int | None, str | None]:
    """Family, dimension and noise of a name; the last two only if they are there."""
    text = str(name).strip().lower()
    family = text.partition("-")[0]
    if family not in FAMILIES:
        raise ValueError(
            f"name={name!r} must begin with one of {', '.join(FAMILIES)}{nearest(family, FAMILIES)}"
        )
    parts = re.fullmatch(r"[a-z]+(?:-(\d{1,8}))?(?:-([a-z]+))?", text)
    if parts is None or parts[2] not in (None, *NOISES):
        raise ValueError(
            f"name={name!r} must be a family, a dimension and a noise such as 'valley-100-heavy'; noises "
            f"are {', '.join(NOISES)}"
        )
    size = int(parts[1]) if parts[1] else None
    return family, size, parts[2]


def _either(what: str, named: Any, value: Any) -> Any:
    """The value in the name or in the argument; raise if both are there."""
    if named is not None and value is not None:
        raise ValueError(f"{what}={value!r}: the name says {named!r} already")
    if named is None:
        return value
    return named
