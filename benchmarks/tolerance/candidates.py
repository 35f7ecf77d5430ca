"""Changes of our law that are tried in a search, beside the library: what is found good moves there, the rest goes.

Against one number g is too high for as long as the learning rate is, whatever f does. The rule answers with w of some
hundreds, which is next to no f: right where g is still on its way down, since what f spoils then is not repaired, and
wrong where g has come to rest at what the rate allows, since f has no time left in the end. `resting` tells them apart.
"""

from typing import NamedTuple

import jax.numpy as jnp

from tiebreak import tolerance

SIZE = 5  # of what is remembered besides


class More(NamedTuple):
    """Constants of the changes; as they stand here they change nothing."""

    still: float = -1e9  # g rests where it moves by less than so many tolerances in a hundred steps,
    unsure: float = 0.0  # and so many standard errors of that;
    share: float = 0.25  # from block to block: this share of the steps made, and 25 steps at least
    keep: float = 0.0  # 1: what has come to rest rests on; when the rate falls g does, too
    mild: float = 1.0  # where g rests, this share of κ,
    held: float = 1e9  # and so many times the integral part at most, in the place of `burst`


def resting(memory, own, seen, c):
    """Whether g has come to rest, and what to remember: blocks made, sum and count of this one, the last mean, rest."""
    block, total, count, before, rest = own
    total, count = total + seen["loss"], count + 1
    full, mean = count >= jnp.maximum(25.0, c.share * (memory.steps + 1)), total / count
    fall = (before - mean) / seen["tolerance"] * 100 / count
    error = 0.886 * memory.change / seen["tolerance"] * jnp.sqrt(2 / count) * 100 / count
    rest = jnp.where(full & (block >= 1), jnp.maximum(jnp.abs(fall) < c.still + c.unsure * error, c.keep * rest), rest)
    now = [block + full, jnp.where(full, 0.0, total), jnp.where(full, 0.0, count), jnp.where(full, mean, before), rest]
    return rest, jnp.stack(now)


def follow(memory, seen, constants, moving, relative):
    """One step of our law with the changes: its memory is followed by that of `resting`."""
    n, width = len(tolerance.Memory._fields), len(tolerance.Constants._fields)
    c, more = tolerance.Constants(*constants[:width]), More(*constants[width : width + len(More._fields)])
    before = tolerance.Memory(*memory[:n])
    rest, own = resting(before, memory[n : n + SIZE], seen, more)
    now, reading = tolerance.follow(
        before,
        seen["loss"],
        seen["reference"],
        seen["tolerance"],
        seen["upper"],
        seen["lower"],
        seen["rate"],
        moving=moving,
        relative=relative,
        constants=c._replace(
            boost=c.boost * (1 + rest * (more.mild - 1)),
            burst=jnp.where(rest > 0, jnp.minimum(more.held, c.burst), c.burst),
        ),
    )
    return jnp.concatenate([jnp.stack(now), own]), reading


#: What counts as rest, and what is done there.
_REST = {"still": 1, "held": 3, "burst": 1000}
_TWIN = {k: v for k, v in tolerance.MOVING._asdict().items() if v != getattr(tolerance.NUMBER, k)}
#: With a twin's way to begin, from above, and a number's margins.
_HIGH = {k: _TWIN[k] for k in ("span", "rise", "dip", "floor", "ceiling", "first", "lift", "knee", "gentle", "pace")}
_HIGH |= {"most": 1000, "burst": 10}
#: Changes of what is used with a number.
CHANGES = {
    **{f"burst {x}": {"burst": x} for x in (3, 10, 30, 300, 1000)},
    "burst 1000, most 30": {"burst": 1000, "most": 30},
    "burst 100, most 100, first 100": {"burst": 100, "most": 100, "first": 100, "lift": 0},
    "burst 1000, most 300, first 300": {"burst": 1000, "most": 300, "first": 300, "lift": 0},
    "aim 0.8": {"aim": 0.8},
    "lift 1": {"lift": 1},
    "lift 4": {"lift": 4},
    "dip 0.3": {"dip": 0.3},
    "floor 0.7": {"floor": 0.7},
    "boost 2": {"boost": 2},
    "boost 6": {"boost": 6},
    "from above": _HIGH,
    **{f"rest, still {x}, held {y}": _REST | {"still": x, "held": y} for x in (0.5, 1, 2) for y in (3, 10, 30)},
    "rest, sure": _REST | {"still": 2, "unsure": -1},
    "rest, sure, held 10": _REST | {"still": 2, "unsure": -1, "held": 10},
    "rest, unsure, held 10": _REST | {"unsure": 1, "held": 10},
    "rest, short": _REST | {"share": 0.125},
    "rest, long": _REST | {"share": 0.4},
    "rest, mild": _REST | {"held": 1000, "mild": 0.1},
    "rest, burst 100": _REST | {"burst": 100},
    "rest, aim 0.8": _REST | {"aim": 0.8},
    "rest, most 12": _REST | {"most": 12},
    "rest, lift 0": _REST | {"lift": 0},
    "as with a twin": _TWIN,
    "as with a twin, rest": _TWIN | {"still": 1, "held": 0.1},
}
