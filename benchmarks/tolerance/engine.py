"""Many trainings as one program: a queue of runs, each with its own rule, optimizer, rates and reference, × seeds.

Everything that differs between two runs of a task is an array. One compiled program therefore serves the tuning of the
learning rate, lower-only training, the sweep of fixed weights and every rule. Batches are drawn per seed and shared by
all runs of the seed, so the loss of lower-only training on each batch is the twin's reference. A rule that may set the
model to its twin needs the twin itself: a second program carries one with every run.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.tolerance import laws

RUNS = (
    640 if jax.default_backend() == "gpu" else 32
)  # runs in one call of a program, all seeds together
AVERAGE = 0.1  # weight of the newest excess in the average that selects the last iterate inside


class Losses(NamedTuple):
    """The functions that a program is compiled for."""

    upper: object
    lower: object


class Run(NamedTuple):
    """One entry of the queue."""

    start: object  # parameters, per seed
    rates: np.ndarray  # learning rate per step
    optimizer: str
    law: str
    constants: tuple
    reference: np.ndarray  # per seed and step
    tolerance: np.ndarray  # per seed


class Outcome(NamedTuple):
    """Both losses on the full data at the end, per seed, and functions that return parameters per seed."""

    lower: np.ndarray
    upper: np.ndarray
    curve: np.ndarray  # lower loss on the batch: seed × step
    ratio: np.ndarray  # w: seed × step
    parameters: object
    inside: (
        object  # parameters of the last step whose averaged excess met the tolerance
    )
    returns: np.ndarray  # how often the run was set to its twin
    twin_parameters: object = None


class Optimizer(NamedTuple):
    """A base optimizer as numbers: which update, two averages, decoupled weight decay."""

    adaptive: float
    momentum: float
    second: float
    decay: float
    orthogonal: float = 0.0


OPTIMIZERS = {
    "SGD": Optimizer(0.0, 0.0, 0.0, 0.0),
    "SGD with momentum": Optimizer(0.0, 0.9, 0.0, 0.0),
    "SGD with momentum, 0.95": Optimizer(0.0, 0.95, 0.0, 0.0),
    "SGD with decay": Optimizer(0.0, 0.9, 0.0, 1e-3),
    "Adam": Optimizer(1.0, 0.9, 0.999, 0.0),
    "Adam, 0.5": Optimizer(1.0, 0.5, 0.9, 0.0),
    "Adam, 0.95": Optimizer(1.0, 0.95, 0.999, 0.0),
    "AdamW": Optimizer(1.0, 0.9, 0.999, 0.01),
    "AdamW, 0.95": Optimizer(1.0, 0.9, 0.95, 0.1),
    "RMSprop": Optimizer(1.0, 0.0, 0.99, 0.0),
    # Matrices are orthogonalised; vectors get Adam's update, as in the usual recipe.
    "Muon": Optimizer(1.0, 0.95, 0.95, 0.0, 1.0),
}


def batches(count, size, steps, seed):
    """Row indices, epoch after epoch, each in a new order; the incomplete batch of an epoch is left out."""
    generator = np.random.default_rng(seed)
    size = min(size, count)
    per_epoch = count // size
    orders = [
        generator.permutation(count)[: per_epoch * size]
        for _ in range(-(-steps // per_epoch))
    ]
    return np.concatenate(orders).reshape(-1, size)[:steps].astype(np.int32)


def _norm(tree):
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def _orthogonalised(matrix):
    """The quintic Newton–Schulz iteration of Muon, with its scale √max(1, rows/columns)."""
    if matrix.ndim != 2:
        return matrix
    x = matrix / (jnp.linalg.norm(matrix) + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    x = x.T if tall else x
    return x * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5


def _moved(muon, optimizer, rate, t, p, m, v, direction):
    """Parameters and moments after a step of the optimizer."""
    adaptive, beta, second, decay, orthogonal = optimizer
    m = jax.tree.map(lambda m, d: beta * m + (1 - adaptive * beta) * d, m, direction)
    v = jax.tree.map(lambda v, d: second * v + (1 - second) * d**2, v, direction)
    first_sum = 1 - beta ** (t + 1)
    second_sum = 1 - second ** (t + 1)

    def update(p, m, v):
        step = jnp.where(
            adaptive > 0, (m / first_sum) / (jnp.sqrt(v / second_sum) + 1e-8), m
        )
        if muon and p.ndim == 2:
            step = jnp.where(orthogonal > 0, _orthogonalised(m), step)
        return p - rate * (step + decay * p)

    return jax.tree.map(update, p, m, v), m, v


class Kind(NamedTuple):
    """What a program is compiled for, besides its losses."""

    carried: bool  # every run has a twin, and is set to it if its rule asks for that
    muon: bool  # some run uses Muon


def _select(condition, one, other):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def _train_step(
    losses,
    kind,
    state,
    upper_rows,
    lower_rows,
    rate,
    optimizer,
    law,
    constants,
    reference,
    tolerance,
):
    """One step of one run: measure, decide, move; return to the twin if the rule asks for it."""
    p, m, v, inside, average, memory, t, returns, *twin = state
    df = jax.grad(losses.upper)(p, upper_rows)
    g, dg = jax.value_and_grad(losses.lower)(p, lower_rows)
    if kind.carried:
        reference, slope = jax.value_and_grad(losses.lower)(twin[0], lower_rows)
    measured = {"loss": g, "reference": reference, "tolerance": tolerance, "rate": rate}
    measured |= {"upper": _norm(df), "lower": _norm(dg)}
    memory, w, unit, length = laws.decide(law, memory, measured, constants)
    longer = jnp.maximum(1.0, w)
    upper_weight = length / (unit * longer)
    lower_weight = length * w / longer
    direction = jax.tree.map(lambda a, b: upper_weight * a + lower_weight * b, df, dg)
    average = average + jnp.maximum(AVERAGE, 1 / (t + 1)) * (
        (g - reference) / tolerance - average
    )
    inside = _select(average <= 1, p, inside)
    own = _moved(kind.muon, optimizer, rate, t, p, m, v, direction)
    if kind.carried:
        twin = _moved(kind.muon, optimizer, rate, t, *twin, slope)
        back = laws.needs_return(law, memory, constants)
        own = _select(back, twin, own)
        memory = jnp.where(back, laws.after_return(law, memory, constants), memory)
        returns = returns + back
    return (*own, inside, average, memory, t + 1, returns, *twin), (g, w)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _program(losses, kind, rows, start, tables, queue):
    """Scan over the steps; vmap over the seeds and, inside, over the queue."""
    upper_all, lower_all = rows
    upper_index, lower_index = tables  # seeds × steps × batch
    rates, optimizer, law, constants, reference, tolerance = queue
    seeds = upper_index.shape[0]
    step = functools.partial(_train_step, losses, kind)
    step = jax.vmap(step, (0, None, None, 0, 0, 0, 0, 0, 0))  # the queue
    step = jax.vmap(step, (0, 0, 0, None, None, None, None, 0, 0))  # the seeds

    def one(state, now):
        up, low, rate, ref = now
        upper_rows = jax.tree.map(lambda x: x[up], upper_all)
        lower_rows = jax.tree.map(lambda x: x[low], lower_all)
        return step(
            state,
            upper_rows,
            lower_rows,
            rate,
            optimizer,
            law,
            constants,
            ref,
            tolerance,
        )

    shape = (seeds, len(law))
    zeros = jax.tree.map(jnp.zeros_like, start)
    nothing = jnp.zeros(shape)
    memory = jnp.broadcast_to(laws.first_memory(law), (*shape, laws.MEMORY))
    state = (start, zeros, zeros, start, nothing, memory, nothing, nothing)
    state += (start, zeros, zeros) if kind.carried else ()
    per_step = (
        upper_index.swapaxes(0, 1),
        lower_index.swapaxes(0, 1),
        rates.T,
        jnp.moveaxis(reference, 2, 0),
    )
    state, (curve, ratio) = jax.lax.scan(one, state, per_step)

    def full(loss, rows):
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), state[0])
        return jax.lax.map(lambda p: loss(p, rows), flat, batch_size=16).reshape(
            seeds, -1
        )

    ends = full(losses.lower, lower_all), full(losses.upper, upper_all)
    curve, ratio = (jnp.moveaxis(x, 0, 2) for x in (curve, ratio))
    return (
        (*ends, curve, ratio, state[7]),
        state[0],
        state[3],
        state[8] if kind.carried else None,
    )


@functools.partial(jax.jit, static_argnums=0)
def _along(losses, rows, anchor, end, places):
    """Both losses on the full data at ``anchor + place · (end − anchor)``, run by run."""
    upper_rows, lower_rows = rows

    def at(one):
        anchor, end, place = one
        p = jax.tree.map(
            lambda a, b: jnp.where(place == 1, b, a + place * (b - a)), anchor, end
        )
        return losses.lower(p, lower_rows), losses.upper(p, upper_rows)

    return jax.lax.map(at, (anchor, end, places), batch_size=16)


class Trainer:
    """Runs queues for one task, batch size, number of steps and list of seeds."""

    def __init__(self, task, batch, steps, seeds, muon=False, offset=0):
        self.losses = Losses(task.upper, task.lower)
        self.seeds, self.steps, self.muon = seeds, steps, muon
        self.rows = jax.device_put((task.upper_rows, task.lower_rows))
        pairs = ((task.upper_rows, 2), (task.lower_rows, 1))
        self.tables = [
            np.stack([batches(len(r[0]), batch, steps, (s + offset, k)) for s in seeds])
            for r, k in pairs
        ]
        many = RUNS // len(seeds)
        self.queues = (
            max(many // 4, 1),
            many,
        )  # two sizes, so that two compiled programs serve all
        self.fresh = jax.vmap(task.init)(jnp.stack([jax.random.key(s) for s in seeds]))

    def __call__(self, runs, carried=False):
        """The outcomes of `runs` in their order; `carried`: each has a twin, which is its reference."""
        outcomes = []
        while len(outcomes) < len(runs):
            few, many = self.queues
            size = many if len(runs) - len(outcomes) > many // 2 else few
            part = runs[len(outcomes) :][:size]
            filled = part + [part[0]] * (size - len(part))
            outcomes += self._queue(filled, carried)[: len(part)]
        return outcomes

    def along(self, anchors, ends):
        """A function that returns both full-data losses at a place of each line, seed by seed."""
        anchors, ends = (
            jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)
            for trees in (anchors, ends)
        )

        def losses(places):
            found = _along(
                self.losses, self.rows, anchors, ends, jnp.asarray(places, jnp.float32)
            )
            return [np.asarray(x, np.float64) for x in found]

        return losses

    def _queue(self, runs, carried):
        # Few of the starts differ: they are stacked once and picked from.
        starts = {id(run.start): run.start for run in runs}
        places = np.array([list(starts).index(id(run.start)) for run in runs])
        start = jax.tree.map(
            lambda *leaves: jnp.stack(leaves, 1)[:, places], *starts.values()
        )
        queue = (
            np.array([run.rates for run in runs], np.float32),
            tuple(np.array([OPTIMIZERS[run.optimizer] for run in runs], np.float32).T),
            np.array([laws.NAMES.index(run.law) for run in runs], np.int32),
            np.array([laws.padded(run.constants) for run in runs], np.float32),
            np.stack([run.reference for run in runs], 1).astype(np.float32),
            np.stack([run.tolerance for run in runs], 1).astype(np.float32),
        )
        kind = Kind(carried, self.muon)
        numbers, end, inside, twin = _program(
            self.losses, kind, self.rows, start, self.tables, queue
        )
        lower, upper, curve, ratio, returns = (
            np.asarray(x, np.float64) for x in numbers
        )

        def parameters(tree, i):
            return jax.tree.map(lambda x: x[:, i], tree)

        return [
            Outcome(
                lower[:, i],
                upper[:, i],
                curve[:, i],
                ratio[:, i],
                functools.partial(parameters, end, i),
                functools.partial(parameters, inside, i),
                returns[:, i],
                functools.partial(parameters, twin, i) if carried else None,
            )
            for i in range(len(runs))
        ]
