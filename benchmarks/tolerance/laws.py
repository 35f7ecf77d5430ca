"""Ours and the others: every law for w = λ/s, with the same normalised step for all.

The others are written with the excess in tolerances and the multiplier in units of s, and their step is divided by
max(1, w) like ours. That is more than their authors give them: raw, each needs other gains for each task, and dual
ascent diverges with SGD.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tiebreak import rules, tolerance

SIZE = len(tolerance.Memory._fields)  # of a law's memory; the shorter ones are filled up
_COMMON = 3  # steps, averaged ‖∇f‖ and ‖∇g‖


def _common(memory, seen):
    """The average unit that all laws share, as ours has it."""
    t, upper, lower = memory[0] + 1, memory[1], memory[2]
    rest = jnp.maximum(1 / t, 0.02)
    upper, lower = upper + rest * (seen["upper"] - upper), lower + rest * (seen["lower"] - lower)
    return jnp.stack([t, upper, lower]), upper / jnp.maximum(lower, 1e-30)


def _others(law):
    """A law of (own memory, seen, constants) → (own memory, w) in the form that `decide` needs."""

    def full(memory, seen, constants):
        common, unit = _common(memory, seen)
        own, w = law(memory[_COMMON:], common[0], seen, unit, constants)
        own = jnp.concatenate([own, jnp.zeros(SIZE - _COMMON - len(own))])
        return jnp.concatenate([common, own]), w, unit, jnp.ones(())

    return full


def _error(seen, aim):
    return (seen["loss"] - seen["reference"]) / seen["tolerance"] - aim


def fixed(own, t, seen, unit, c):
    """The weight c₀."""
    return jnp.zeros(0), c[0]


def within(own, t, seen, unit, c):
    """The first law: a rule on this step's gradients, κ = c₀ = 30, aiming three quarters of a tolerance too low."""
    loss = own[0] + jnp.maximum(1 / t, 0.1) * (seen["loss"] - own[0])
    reference = own[1] + jnp.maximum(1 / t, 0.1) * (seen["reference"] - own[1])
    gg, ff = seen["lower"] ** 2, seen["upper"] ** 2
    excess = (loss - reference) / seen["tolerance"] - 0.25
    value = rules.multiplier(seen["product"], gg, c[0] * excess * ff**0.5 * gg**0.5, 1e-30)
    return jnp.stack([loss, reference]), value / jnp.maximum(unit, 1e-30)


def dual_ascent(own, t, seen, unit, c):
    """w ← [w + c₀ e]₊, from w = c₁, aiming at c₂: what Cooper does."""
    w = jnp.where(t > 1, own[0], c[1]) + c[0] * _error(seen, c[2])
    w = jnp.clip(w, 0, 1e6)
    return w[None], w


def nu_pi(own, t, seen, unit, c):
    """ξ ← 0.9 ξ + 0.1 e, w ← [w + c₀ e + c₃ (ξ − ξ₋)]₊."""
    error = _error(seen, c[2])
    smooth = jnp.where(t > 1, 0.9 * own[1] + 0.1 * error, error)
    w = jnp.where(t > 1, own[0], c[1]) + c[0] * error + c[3] * jnp.where(t > 1, smooth - own[1], 0.0)
    w = jnp.clip(w, 0, 1e6)
    return jnp.stack([w, smooth]), w


def pid(own, t, seen, unit, c):
    """w = [c₃ ē + I + c₄ [Δē]₊]₊ with I ← [I + c₀ e]₊ and ē an average: the PID Lagrangian."""
    error = _error(seen, c[2])
    smooth = jnp.where(t > 1, 0.9 * own[1] + 0.1 * error, error)
    slope = jnp.maximum(jnp.where(t > 1, smooth - own[1], 0.0), 0)
    integral = jnp.clip(jnp.where(t > 1, own[0], c[1]) + c[0] * error, 0, 1e6)
    return jnp.stack([integral, smooth]), jnp.clip(c[3] * smooth + integral + c[4] * slope, 0, 1e6)


def switching(own, t, seen, unit, c):
    """A step on g where the averaged excess (weight c₀) is above c₂, else on f (times c₁)."""
    error = _error(seen, c[2])
    smooth = own[0] + jnp.maximum(1 / t, c[0]) * (error - own[0])
    return smooth[None], jnp.where(smooth > 0, 1e6, c[1])


class Return(NamedTuple):
    """When ours is set to its twin, as the library has it: after so many steps in vain, and this share of all steps."""

    patience: float = tolerance.PATIENCE
    share: float = tolerance.SHARE


_WIDTH = len(tolerance.Constants._fields)


def _split(constants):
    """Constants of ours, and what follows them."""
    return tolerance.Constants(*constants[:_WIDTH]), Return(*constants[_WIDTH:])


def _ours(moving, relative=False):
    def full(memory, seen, constants):
        now, reading = tolerance.follow(
            tolerance.Memory(*memory),
            seen["loss"],
            seen["reference"],
            seen["tolerance"],
            seen["upper"],
            seen["lower"],
            seen["rate"],
            moving=moving,
            relative=relative,
            constants=_split(constants)[0],
        )
        return jnp.stack(now), reading.ratio, reading.unit, reading.length

    return full


LAWS = {
    "fixed": _others(fixed),
    "within": _others(within),
    "dual ascent": _others(dual_ascent),
    "νPI": _others(nu_pi),
    "PID": _others(pid),
    "switching": _others(switching),
    "ours, moving": _ours(True),
    "ours, number": _ours(False),
    "ours, share": _ours(True, relative=True),
}
NAMES = list(LAWS)


def padded(constants):
    """As many as all have; ours are followed by when they are set to their twin."""
    back = tuple(Return()) if len(constants) == _WIDTH else ()
    constants = tuple(constants) + back
    return constants + (0.0,) * (_WIDTH + len(Return._fields) - len(constants))


def beyond(memory, constants):
    """Whether ours is to be set to its twin now."""
    back = _split(constants)[1]
    return tolerance.beyond(tolerance.Memory(*memory), back.patience, back.share)


def rejoined(memory, constants):
    """The memory of ours then."""
    return jnp.stack(tolerance.rejoined(tolerance.Memory(*memory), _split(constants)[0]))


def memory(law):
    """The memory at the start, a row per run."""
    return jnp.array([list(tolerance.begin()) if "ours" in name else [0.0] * SIZE for name in NAMES])[law]


def decide(law, memory, seen, constants):
    """All laws are worked out and one is kept: they are a handful of scalars, and runs of a queue differ in law."""
    return jax.lax.switch(law, list(LAWS.values()), memory, seen, constants)
