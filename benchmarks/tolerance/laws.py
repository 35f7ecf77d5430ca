"""The rules that are compared: ours, the landed one and those of other authors, all for the multiplier w = λ/s.

Every rule gets the same normalised step and the excess in tolerances, and every peer the averaged unit s. The original
papers use neither, so their raw gains would have to be tuned for each task.
"""

import jax
import jax.numpy as jnp

from benchmarks.tolerance import landed
from tiebreak import tolerance

HEAD = 3  # fields that all peers share: steps, averaged ‖∇f‖ and ‖∇g‖
MEMORY = max(len(landed.rule.Memory._fields), len(tolerance.Memory._fields))
CONSTANTS = max(len(landed.rule.Constants._fields), len(tolerance.Constants._fields))


def _peer(update):
    """A rule ``update(own memory, t, measured, constants) -> (own memory, w)`` in the form that `decide` calls."""

    def rule(memory, measured, constants):
        t = memory[0] + 1
        weight = jnp.maximum(1 / t, 0.02)
        upper = memory[1] + weight * (measured["upper"] - memory[1])
        lower = memory[2] + weight * (measured["lower"] - memory[2])
        own, w = update(memory[HEAD:], t, measured, constants)
        rest = jnp.zeros(MEMORY - HEAD - len(own))
        memory = jnp.concatenate([jnp.stack([t, upper, lower]), own, rest])
        return memory, w, upper / jnp.maximum(lower, 1e-30), jnp.ones(())

    return rule


def _error(measured, aim):
    return (measured["loss"] - measured["reference"]) / measured["tolerance"] - aim


def fixed(own, t, measured, c):
    """The weight c₀."""
    return jnp.zeros(0), c[0]


def dual_ascent(own, t, measured, c):
    """``w ← [w + c₀ e]₊`` from w = c₁, aiming at c₂; as in Cooper."""
    w = jnp.where(t > 1, own[0], c[1]) + c[0] * _error(measured, c[2])
    w = jnp.clip(w, 0, 1e6)
    return w[None], w


def nu_pi(own, t, measured, c):
    """νPI: ``ξ ← 0.9 ξ + 0.1 e``, ``w ← [w + c₀ e + c₃ (ξ − ξ₋)]₊``."""
    error = _error(measured, c[2])
    smooth = jnp.where(t > 1, 0.9 * own[1] + 0.1 * error, error)
    change = jnp.where(t > 1, smooth - own[1], 0.0)
    w = jnp.where(t > 1, own[0], c[1]) + c[0] * error + c[3] * change
    w = jnp.clip(w, 0, 1e6)
    return jnp.stack([w, smooth]), w


def pid(own, t, measured, c):
    """The PID Lagrangian: ``w = [c₃ ē + I + c₄ [Δē]₊]₊`` with ``I ← [I + c₀ e]₊`` and an average ē."""
    error = _error(measured, c[2])
    smooth = jnp.where(t > 1, 0.9 * own[1] + 0.1 * error, error)
    slope = jnp.maximum(jnp.where(t > 1, smooth - own[1], 0.0), 0)
    integral = jnp.clip(jnp.where(t > 1, own[0], c[1]) + c[0] * error, 0, 1e6)
    return jnp.stack([integral, smooth]), jnp.clip(
        c[3] * smooth + integral + c[4] * slope, 0, 1e6
    )


def switching(own, t, measured, c):
    """A step on g where the averaged excess (weight c₀) is above c₂, else on f with w = c₁."""
    error = _error(measured, c[2])
    smooth = own[0] + jnp.maximum(1 / t, c[0]) * (error - own[0])
    return smooth[None], jnp.where(smooth > 0, 1e6, c[1])


def rcml(own, t, measured, c):
    """RCML (arXiv 2606.07088): the pressure ``w = [m + c₃ ē]₊``, whose memory follows it, ``m ← m + c₀ (w − m)``."""
    error = _error(measured, c[2])
    smooth = jnp.where(t > 1, 0.9 * own[1] + 0.1 * error, error)
    memory = jnp.where(t > 1, own[0], c[1])
    pressure = jnp.clip(memory + c[3] * smooth, 0, 1e6)
    memory = memory + c[0] * (pressure - memory)
    return jnp.stack([memory, smooth]), pressure


def spbm(own, t, measured, c):
    """SPBM (arXiv 2605.18618): ``w ← (1 − c₀) w + c₀ w φ′(e/c₃)`` with the log-quadratic penalty-barrier φ."""
    scaled = _error(measured, c[2]) / c[3]
    slope = jnp.where(scaled >= -0.5, 1 + scaled, -1 / (4 * jnp.minimum(scaled, -0.5)))
    w = jnp.where(t > 1, own[0], c[1])
    w = jnp.clip((1 - c[0]) * w + c[0] * w * slope, 1e-3, 1e6)
    return w[None], w


def _landed(moving):
    count = len(landed.rule.Constants._fields)

    def rule(memory, measured, constants):
        new, reading = landed.rule.follow(
            landed.rule.Memory(*memory[: len(landed.rule.Memory._fields)]),
            measured["loss"],
            measured["reference"],
            measured["tolerance"],
            measured["upper"],
            measured["lower"],
            measured["rate"],
            moving=moving,
            constants=landed.rule.Constants(*constants[:count]),
        )
        return _filled(new), reading.ratio, reading.unit, reading.length

    return rule


def _filled(memory):
    return jnp.stack([*memory, *[jnp.zeros(())] * (MEMORY - len(memory))])


def _ours(relative=False, same_batch=True):
    def rule(memory, measured, constants):
        c = tolerance.Constants(*constants[: len(tolerance.Constants._fields)])
        new, reading = tolerance.follow(
            tolerance.Memory(*memory[: len(tolerance.Memory._fields)]),
            measured["loss"],
            measured["reference"],
            measured["tolerance"],
            measured["upper"],
            measured["lower"],
            relative=relative,
            same_batch=same_batch,
            constants=c,
        )
        return _filled(new), reading.ratio, reading.unit, jnp.ones(())

    return rule


RULES = {
    "fixed": _peer(fixed),
    "dual ascent": _peer(dual_ascent),
    "νPI": _peer(nu_pi),
    "PID": _peer(pid),
    "switching": _peer(switching),
    "RCML": _peer(rcml),
    "SPBM": _peer(spbm),
    "landed": _landed(True),
    "landed, number": _landed(False),
    "ours": _ours(),
    "ours, share": _ours(relative=True),
    "ours, number": _ours(same_batch=False),
}
NAMES = list(RULES)
OURS = NAMES.index("ours")  # the first of ours; all the following are ours, too
LANDED = NAMES.index("landed")


def padded(constants):
    """The constants of a rule, filled up to the number that all rules have."""
    return (*constants, *[0.0] * (CONSTANTS - len(constants)))


def first_memory(rules):
    """The memory before the first step, a row for each run."""
    first = jnp.zeros(MEMORY)
    return jnp.broadcast_to(first, (len(rules), MEMORY))


def decide(rule, memory, measured, constants):
    """Evaluate every rule and select one: a rule is a handful of scalars, and the runs of a queue differ in theirs."""
    return jax.lax.switch(rule, list(RULES.values()), memory, measured, constants)


def needs_return(rule, memory, constants):
    """Whether the model is to be set to its twin now."""
    ours = tolerance.Memory(*memory[: len(tolerance.Memory._fields)])
    theirs = landed.rule.Memory(*memory[: len(landed.rule.Memory._fields)])
    c = tolerance.Constants(*constants[: len(tolerance.Constants._fields)])
    is_ours = rule >= OURS
    return jnp.where(
        is_ours,
        tolerance.needs_return(ours, c),
        (rule == LANDED) & landed.rule.beyond(theirs),
    )


def after_return(rule, memory, constants):
    """The memory after that."""
    ours = tolerance.Memory(*memory[: len(tolerance.Memory._fields)])
    theirs = landed.rule.Memory(*memory[: len(landed.rule.Memory._fields)])
    c = tolerance.Constants(*constants[: len(tolerance.Constants._fields)])
    d = landed.rule.Constants(*constants[: len(landed.rule.Constants._fields)])
    is_ours = rule >= OURS
    return jnp.where(
        is_ours,
        _filled(tolerance.after_return(ours, c)),
        _filled(landed.rule.rejoined(theirs, d)),
    )
