"""Many trainings as one program: seeds × a queue of runs, each with its own law, optimizer, rates and reference.

Everything that distinguishes two runs of a task is an array, so that one compiled program serves the tuning of the
learning rate, lower-only training, the sweep of fixed weights and every law. Batches are drawn per seed and shared by
all runs of the seed: the loss that lower-only training has on each of them is the twin's reference. What is set to its
twin needs more than that curve: another program carries a twin with every run.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.tolerance import laws

# Runs in one call of a program, all seeds together: what fills a GPU would keep two cores busy for long.
RUNS = 640 if jax.default_backend() == "gpu" else 32
LAST, EVERY = 50, 5  # the swing is measured on the full data every 5th of the last 50 steps
AVERAGE = 0.99  # of the weights


class Losses(NamedTuple):
    """What a program is compiled for: functions, which can be compared, where a task's arrays cannot."""

    upper: object
    lower: object


class Run(NamedTuple):
    """What one entry of the queue is told; arrays have a value per seed where the comment says so."""

    start: object  # parameters, per seed
    rates: np.ndarray  # learning rate per step
    optimizer: str
    law: str
    constants: tuple
    reference: np.ndarray  # per seed and step
    tolerance: np.ndarray  # per seed


class Outcome(NamedTuple):
    """Per seed: both losses on the full data at the end, for the last iterate and the averaged weights."""

    lower: np.ndarray
    upper: np.ndarray
    averaged_lower: np.ndarray
    averaged_upper: np.ndarray
    swing: np.ndarray  # full-data lower loss at the last steps: seed × 10
    averaged_swing: np.ndarray
    curve: np.ndarray  # lower loss on the batch: seed × step
    ratio: np.ndarray  # w: seed × step
    parameters: object  # a function that gives those at the end, per seed
    twin_lower: np.ndarray | None = None  # of the twin that was carried
    twin_upper: np.ndarray | None = None
    returns: np.ndarray | None = None  # how often the run was set to it
    twin_parameters: object = None  # a function that gives those of the twin at the end, per seed


# adam?, β₁, β₂, decoupled weight decay
OPTIMIZERS = {
    "SGD": (0.0, 0.0, 0.0, 0.0),
    "SGD with momentum": (0.0, 0.9, 0.0, 0.0),
    "Adam": (1.0, 0.9, 0.999, 0.0),
    "AdamW": (1.0, 0.9, 0.999, 0.01),
    "AdamW, 0.95": (1.0, 0.9, 0.95, 0.1),
    "RMSprop": (1.0, 0.0, 0.99, 0.0),
    "Adam, 0.5": (1.0, 0.5, 0.9, 0.0),
    "SGD with momentum, 0.95": (0.0, 0.95, 0.0, 0.0),
    "Adam, 0.95": (1.0, 0.95, 0.999, 0.0),
    "SGD with decay": (0.0, 0.9, 0.0, 1e-3),  # with momentum, and the decay beside it
}


def batches(count, size, steps, seed):
    """Indices, an epoch after another, each in a new order; the last, smaller batch of an epoch is left out."""
    generator, size = np.random.default_rng(seed), min(size, count)
    per_epoch = count // size
    orders = [generator.permutation(count)[: per_epoch * size] for _ in range(-(-steps // per_epoch))]
    return np.concatenate(orders).reshape(-1, size)[:steps].astype(np.int32)


def _dot(one, two):
    return sum(jnp.sum(a * b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))


def _norm(tree):
    return jnp.sqrt(_dot(tree, tree))


def _moved(optimizer, rate, t, p, m, v, direction):
    """Parameters and moments after a step of the optimizer."""
    adam, beta, second, decay = optimizer
    m = jax.tree.map(lambda m, d: beta * m + (1 - adam * beta) * d, m, direction)
    v = jax.tree.map(lambda v, d: second * v + (1 - second) * d**2, v, direction)
    ones, twos = 1 - beta ** (t + 1), 1 - second ** (t + 1)
    adaptive = jax.tree.map(lambda m, v: (m / ones) / (jnp.sqrt(v / twos) + 1e-8), m, v)
    p = jax.tree.map(lambda p, m, a: p - rate * (jnp.where(adam > 0, a, m) + decay * p), p, m, adaptive)
    return p, m, v


def _train_step(task, carried, state, upper_rows, lower_rows, rate, optimizer, law, constants, reference, tolerance):
    """One step of one run: measure, decide, move; with a twin that is `carried`, go back to it where that is due."""
    p, m, v, average, memory, t, *twin = state
    df = jax.grad(task.upper)(p, upper_rows)
    g, dg = jax.value_and_grad(task.lower)(p, lower_rows)
    if carried:
        *twin, returns = twin
        reference, slope = jax.value_and_grad(task.lower)(twin[0], lower_rows)
    seen = {"loss": g, "reference": reference, "tolerance": tolerance, "rate": rate}
    seen |= {"upper": _norm(df), "lower": _norm(dg), "product": _dot(df, dg)}
    memory, w, unit, length = laws.decide(law, memory, seen, constants)
    longer = jnp.maximum(1.0, w)
    share = w / longer
    # 1 − share would lose what f has where w is large.
    direction = jax.tree.map(lambda a, b: length * (a * (1 / (unit * longer)) + share * b), df, dg)
    own = _moved(optimizer, rate, t, p, m, v, direction)
    if carried:
        twin = _moved(optimizer, rate, t, *twin, slope)
        back = laws.beyond(memory, constants)
        own = jax.tree.map(lambda mine, its: jnp.where(back, its, mine), own, twin)
        memory = jnp.where(back, laws.rejoined(memory, constants), memory)
        twin = (*twin, returns + back)
    rest = jnp.maximum(1 - AVERAGE, 1 / (t + 1))
    average = jax.tree.map(lambda a, p: a + rest * (p - a), average, own[0])
    return (*own, average, memory, t + 1, *twin), (g, w)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _program(task, carried, rows, start, tables, queue):
    """Scan over blocks of steps; vmap over seeds and, inside, over the queue. `carried`: every run has a twin."""
    upper_all, lower_all = rows
    upper_index, lower_index = tables  # seeds × steps × batch
    rates, optimizer, law, constants, reference, tolerance = queue
    seeds, steps = upper_index.shape[:2]
    step = functools.partial(_train_step, task, carried)
    step = jax.vmap(step, (0, None, None, 0, 0, 0, 0, 0, 0))  # the queue
    step = jax.vmap(step, (0, 0, 0, None, None, None, None, 0, 0))  # the seeds

    def one(state, now):
        up, low, rate, ref = now
        pick = functools.partial(jax.tree.map, lambda x: x[up])
        pick_lower = functools.partial(jax.tree.map, lambda x: x[low])
        return step(state, pick(upper_all), pick_lower(lower_all), rate, optimizer, law, constants, ref, tolerance)

    def full(loss, rows, parameters):
        # A few runs at a time: activations of all rows for all runs would not fit.
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), parameters)
        return jax.lax.map(lambda p: loss(p, rows), flat, batch_size=16).reshape(seeds, -1)

    def block(state, now):
        index, *now = now
        state, seen = jax.lax.scan(one, state, tuple(now))

        def look():
            return full(task.lower, lower_all, state[0]), full(task.lower, lower_all, state[3])

        nothing = jnp.zeros((seeds, len(law)))
        return state, (seen, jax.lax.cond(index >= (steps - LAST) // EVERY, look, lambda: (nothing, nothing)))

    def blocks(x):
        return x.reshape(steps // EVERY, EVERY, *x.shape[1:])

    shape = (seeds, len(law))
    zeros = jax.tree.map(jnp.zeros_like, start)
    state = (start, zeros, zeros, zeros, jnp.broadcast_to(laws.memory(law), (*shape, laws.SIZE)), jnp.zeros(shape))
    state += (start, zeros, zeros, jnp.zeros(shape)) if carried else ()
    per_step = (upper_index.swapaxes(0, 1), lower_index.swapaxes(0, 1), rates.T, jnp.moveaxis(reference, 2, 0))
    state, ((curve, ratio), (swing, averaged)) = jax.lax.scan(
        block, state, (jnp.arange(steps // EVERY), *map(blocks, per_step))
    )
    last = LAST // EVERY
    ends = [
        full(loss, rows, p)
        for p in (state[0], state[3])
        for loss, rows in ((task.lower, lower_all), (task.upper, upper_all))
    ]
    curve, ratio = (jnp.moveaxis(x.reshape(steps, *shape), 0, 2) for x in (curve, ratio))
    twin = ()
    if carried:
        twin = full(task.lower, lower_all, state[6]), full(task.upper, upper_all, state[6]), state[9]
    found = (*ends, jnp.moveaxis(swing[-last:], 0, 2), jnp.moveaxis(averaged[-last:], 0, 2), curve, ratio)
    return found, state[0], twin, state[6] if carried else None


@functools.partial(jax.jit, static_argnums=0)
def _along(task, rows, anchor, end, places):
    """Both losses on the full data at ``anchor + place · (end − anchor)``, run by run."""
    upper_rows, lower_rows = rows

    def at(one):
        anchor, end, place = one
        p = jax.tree.map(lambda a, b: jnp.where(place == 1, b, a + place * (b - a)), anchor, end)
        return task.lower(p, lower_rows), task.upper(p, upper_rows)

    return jax.lax.map(at, (anchor, end, places), batch_size=16)


class Trainer:
    """Runs queues for one task, batch size, number of steps and list of seeds."""

    def __init__(self, task, batch, steps, seeds):
        self.losses, self.seeds, self.steps = Losses(task.upper, task.lower), seeds, steps
        self.rows = jax.device_put((task.upper_rows, task.lower_rows))
        pairs = ((task.upper_rows, 2), (task.lower_rows, 1))
        self.tables = [np.stack([batches(len(r[0]), batch, steps, (s, k)) for s in seeds]) for r, k in pairs]
        many = RUNS // len(seeds)
        self.queues = (many // 4, many)  # few or many, so that two compiled programs serve all
        self.fresh = jax.vmap(task.init)(jnp.stack([jax.random.key(s) for s in seeds]))

    def __call__(self, runs, carried=False):
        """The outcomes of `runs`, in their order.

        `carried`: each is of ours and has a twin, which is its reference, and which it is set to where that is due.
        """
        outcomes = []
        while len(outcomes) < len(runs):
            few, many = self.queues
            size = many if len(runs) - len(outcomes) > many // 2 else few
            part = runs[len(outcomes) :][:size]
            filled = part + [part[0]] * (size - len(part))  # with copies
            outcomes += self._queue(filled, carried)[: len(part)]
        return outcomes

    def along(self, anchors, ends):
        """A function that gives the lower and the upper loss on the full data at a place of each line.

        `anchors` and `ends` are lists of parameters per seed; lines and places are in their order, seed by seed.
        """
        joined = [jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees) for trees in (anchors, ends)]

        def losses(places):
            found = _along(self.losses, self.rows, *joined, jnp.asarray(places, jnp.float32))
            return [np.asarray(x, np.float64) for x in found]

        return losses

    def _queue(self, runs, carried):
        # Few of the starts differ: they are stacked once and picked from.
        unlike = {id(run.start): run.start for run in runs}
        places = np.array([list(unlike).index(id(run.start)) for run in runs])
        start = jax.tree.map(lambda *leaves: jnp.stack(leaves, 1)[:, places], *unlike.values())
        padded = [laws.padded(run.constants) for run in runs]
        queue = (
            np.array([run.rates for run in runs], np.float32),
            tuple(np.array([OPTIMIZERS[run.optimizer] for run in runs], np.float32).T),
            np.array([laws.NAMES.index(run.law) for run in runs], np.int32),
            np.array(padded, np.float32),
            np.stack([run.reference for run in runs], 1).astype(np.float32),
            np.stack([run.tolerance for run in runs], 1).astype(np.float32),
        )
        result, end, twin, twin_end = _program(self.losses, carried, self.rows, start, self.tables, queue)
        result, twin = ([np.asarray(x, np.float64) for x in found] for found in (result, twin))

        def parameters(tree, i):
            return jax.tree.map(lambda x: x[:, i], tree)

        def outcome(i):
            found = Outcome(*(x[:, i] for x in result), functools.partial(parameters, end, i))
            if not carried:
                return found
            lower, upper, returns = (x[:, i] for x in twin)
            its = functools.partial(parameters, twin_end, i)
            return found._replace(twin_lower=lower, twin_upper=upper, returns=returns, twin_parameters=its)

        return [outcome(i) for i in range(len(runs))]
