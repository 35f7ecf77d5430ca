"""The only loop: sample → estimate → inner products → rule → step → record."""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from tiebreak.checks import whole
from tiebreak.decision import Decision, Measurement
from tiebreak.estimators import Minibatch
from tiebreak.estimators.contract import estimate
from tiebreak.files import FilePath, locked
from tiebreak.interrupts import interrupts
from tiebreak.oracles import Array
from tiebreak.progress import Progress, progress_line
from tiebreak.result import Result, Status
from tiebreak.schedules import Parameters
from tiebreak.solver.arguments import Setup, prepare
from tiebreak.solver.budget import Charged, Steps
from tiebreak.solver.callbacks import answered, recorded
from tiebreak.solver.check_vectorized import kept_apart
from tiebreak.solver.checkpoint import State
from tiebreak.solver.curvature_probe import Watching
from tiebreak.solver.history import (
    Glance,
    Measurer,
    Record,
    Recorder,
    fault,
    start_values,
    wanted,
)
from tiebreak.solver.objective import Stream, generators
from tiebreak.solver.result_warnings import warned
from tiebreak.solver.selection import replacements
from tiebreak.solver.step import Kept, Now, descended, frozen
from tiebreak.stationarity import dot, products


def minimize(
    upper: Any,
    lower: Any,
    x0: Any = None,
    *,
    method: Any = None,
    budget: int | None = None,
    steps: int | None = None,
    runs: int | Sequence[int] | None = None,
    seed: int | Sequence[int] | SeedSequence | None = None,
    callback: Callable[[Record], Any] | None = None,
    record: str | int | Sequence[int] | None = "log",
    keep_iterates: bool = False,
    progress: bool | Callable[[Progress], Any] = False,
    checkpoint: FilePath | None = None,
    checkpoint_every: int = 1000,
    resume: Result | FilePath | None = None,
) -> Result:
    """Minimise the upper objective f among the minimisers of the lower objective g, from stochastic gradients.

    Parameters
    ----------
    upper, lower : Oracle or callable
        f, the tie-breaker, and g, what must be optimal. A plain function is taken as an exact gradient.
    x0 : array_like
        Where to start; any shape, float32 or float64 (whole numbers become float64).
    method : Method, str or Plan
        A row of :mod:`tiebreak.methods`, by itself or by name, or a plan of :mod:`tiebreak.theory`; "auto" if none.
    budget : int, optional
        Calls of both levels together that each run may make. A step is made only if all of it fits.
    steps : int, optional
        Steps to make. With both limits, the first to be reached ends the run. A plan brings its own.
    runs : int or sequence of int, optional
        How many independent runs, or the numbers of those wanted: run 3 is the same run whatever runs beside it. If
        given, every array of the result has a leading axis for runs; if not, there is one run and no such axis.
    seed : int, sequence of int or SeedSequence, optional
        Each run has streams of its own for upper samples, lower samples and selection. Without a seed, a fresh one is
        taken and kept in the result.
    callback : callable, optional
        Called after every step with a :class:`~tiebreak.solver.history.Record`; stops the run by returning True or raising
        StopIteration.
    record : "log", int, sequence of int or None
        What goes into the history: about 50 steps a decade, every n-th step, or nothing. Or call counts that grow: then
        its rows are the iterates in which runs with these budgets would have ended, and what they would have measured
        there, bit for bit. Never charged, and without influence on the run.
    keep_iterates : bool
        Whether the history keeps the recorded iterates, too.
    progress : bool or callable
        True for a line on standard error, or a function of :class:`Progress`.
    checkpoint : path, optional
        Where to save the run, atomically: every `checkpoint_every` steps, at its end, and when an error, Ctrl-C or
        SIGTERM (exit code 143) cuts it short. Another process that is writing it raises BlockingIOError.
    resume : Result or path, optional
        Go on from a result, a saved one or a checkpoint; equal, bit for bit, to a run that was never stopped. Give
        `upper` and `lower` again, and `method` if it is your own. A new limit replaces the old; the rest is as it was.

    Returns
    -------
    Result

    Examples
    --------
    The points with x₁ = x₂ minimise g; f prefers (3, 1), so the answer is (2, 2).

    >>> import numpy as np, tiebreak
    >>> lower = lambda x: (x[0] - x[1]) * np.array([1.0, -1.0])
    >>> upper = lambda x: x - np.array([3.0, 1.0])
    >>> schedule = tiebreak.Schedule(step_size=0.1, barrier=1.0)
    >>> method = tiebreak.methods.dbgd.replace(schedule=schedule)
    >>> result = tiebreak.minimize(upper, lower, [0.0, 0.0], method=method, steps=200)
    >>> result.x.round(3)
    array([2., 2.])
    """
    with locked(checkpoint):  # before it is read: another process may be writing it
        setup = prepare(
            upper,
            lower,
            x0,
            method,
            budget,
            steps,
            runs,
            seed,
            record,
            keep_iterates,
            resume,
        )
        if len(setup.configuration.runs) > 1:
            kept_apart(setup.method, setup.lower.dimension, setup.lower.dtype)
        if not (callback is None or callable(callback)):
            raise TypeError(
                f"callback={callback!r} must be a function of a record, or None"
            )
        if not (isinstance(progress, bool) or callable(progress)):
            raise TypeError(f"progress={progress!r} must be True, False or a function")
        every = whole("checkpoint_every", checkpoint_every)
        with (
            progress_line()
            if progress is True
            else nullcontext(progress or None) as shown
        ):
            made = None if resume is None else setup.state.k
            result = _Solver(setup, callback, shown, checkpoint, every).run().result()
    return warned(result, resumed_at=made)


class _Solver:
    def __init__(
        self,
        setup: Setup,
        callback: Callable[[Record], Any] | None,
        progress: Callable[[Progress], Any] | None,
        checkpoint: FilePath | None,
        checkpoint_every: int,
    ) -> None:
        self.started = time.perf_counter()
        self.configuration = setup.configuration
        self.method = setup.method
        self.upper = setup.upper
        self.lower = setup.lower
        state = setup.state
        self.callback = callback
        self.progress = progress
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.state = state
        self.weight = state.weight
        self.now = Now.of(state)
        numbers = [self.configuration.runs[r] for r in state.alive]
        seed = SeedSequence(
            self.configuration.entropy, spawn_key=self.configuration.spawn_key
        )
        upper, lower, selection = generators(seed, numbers)
        self.streams = {
            "upper": Stream(upper, self.upper.draw),
            "lower": Stream(lower, self.lower.draw),
        }
        self.streams["selection"] = Stream(selection, self.select)
        for name, states in state.streams.items():
            for rng, saved in zip(self.streams[name].rngs, states, strict=True):
                rng.bit_generator.state = saved
        self.minibatches = type(self.method.estimator) is Minibatch
        self.in_direction = self.method.estimator.direction
        self.scale = getattr(
            self.method.rule, "scale", None
        )  # of a rule that chooses the step size as well
        self.watching = Watching(self.method, state.start)
        self.evaluate = self.upper.evaluate, self.lower.evaluate
        if self.watching.on:
            self.evaluate = (
                self.watching.noting("upper", self.upper),
                self.watching.noting("lower", self.lower),
            )
        apply = self.method.applied if self.method.remembers else self.method.multiplier
        self.decide = Decision(self.method, normalize=False, apply=apply)
        self.measures = bool(
            self.method.measured
        )  # whether the rule asks for more than inner products
        self.measurer = Measurer(self.method, self.upper, self.lower)
        self.glance = Glance(self.measurer)
        runs = len(self.configuration.runs)
        self.recorder = Recorder(
            self.measurer, runs, self.configuration.keep_iterates, state.history
        )
        if (
            not state.start_measures
        ):  # so that a result can say whether g ended above its start
            state.start_measures = start_values(
                state.start, (self.upper, self.lower), runs
            )
        self.parameters: Parameters | None = (
            None  # of the step just made; the residuals of the last iterate use them
        )
        self.fitting: Steps | None = None  # those that come next
        self.stopped: Status | None = None

    def run(self) -> State:
        """Make steps until something says to stop."""
        with interrupts(terminations=self.checkpoint is not None) as interrupted:
            while self.state.alive and self.stopped is None:
                steps, limit = self.upcoming()
                if not steps:
                    self.stopped = limit
                    break
                self.advance(steps, interrupted)
                if self.progress is not None:
                    self.progress(self.report())
                due = self.now.k % self.checkpoint_every == 0
                if self.checkpoint is not None and self.stopped is None and due:
                    self.save_checkpoint(Status.RUNNING)
            if self.checkpoint is not None:
                self.save_checkpoint(self.stopped or Status.STEPS)
        return self.snapshot(self.stopped or Status.STEPS)

    def upcoming(self) -> tuple[list[Charged], Status]:
        """The next steps that fit the limits, a block at most, and the limit that ends them."""
        now = self.now
        c = self.configuration
        alive = len(self.state.alive)
        size = min(self.upper.block_size(alive), self.lower.block_size(alive))
        if self.checkpoint is not None:  # a block ends where a checkpoint is due
            size = min(size, self.checkpoint_every - now.k % self.checkpoint_every)
        if (
            self.fitting is None or self.fitting.k != now.k
        ):  # at first, and after a block that was not made to its end
            spent = now.upper_calls + now.lower_calls
            self.fitting = Steps(
                self.method, steps=c.steps, budget=c.budget, k=now.k, spent=spent
            )
        steps = self.fitting.block(
            size, self.upper.samples_ahead, self.lower.samples_ahead
        )
        return steps, self.fitting.ended

    def select(self, rngs: Any, weights: Sequence[float]) -> NDArray[np.bool_]:
        return replacements(rngs, weights, self.weight)

    def advance(
        self, charged: Sequence[Charged], interrupted: Callable[[], bool]
    ) -> None:
        """Make these steps, or as many of them as nothing stops."""
        first = self.now.k
        steps = [parameters for parameters, _ in charged]
        weights = [p.weight for p in steps]
        failures: dict[int, str] = {}
        try:
            upper_tokens = self.streams["upper"].block(
                [p.upper_batch if p.upper_points else 0 for p in steps]
            )
            lower_tokens = self.streams["lower"].block(
                [p.lower_batch if p.lower_points else 0 for p in steps]
            )
            replaced = self.streams["selection"].block(weights)
            # Asked for all steps at once: at every step it takes longer.
            selecting = [
                row if some else None
                for row, some in zip(
                    replaced, replaced.any(axis=1).tolist(), strict=True
                )
            ]
            record = self.configuration.record
            before = self.now.upper_calls + self.now.lower_calls
            given = isinstance(record, tuple)  # call counts
            spent = (
                list(accumulate((sum(cost) for _, cost in charged), initial=before))
                if given
                else []
            )
            noted = wanted(record, first, len(steps), spent)
            with np.errstate(all="ignore"):
                for (parameters, cost), upper, lower, selected, note in zip(
                    charged, upper_tokens, lower_tokens, selecting, noted, strict=True
                ):
                    failures = self.step(parameters, cost, upper, lower, selected, note)
                    if not failures and self.callback is not None:
                        self.call_back()
                    if interrupted():
                        self.stopped = Status.INTERRUPTED
                    if failures or self.stopped is not None:
                        break
        except KeyboardInterrupt:
            self.stopped = Status.INTERRUPTED
        except BaseException:
            if self.checkpoint is not None:
                with suppress(Exception):  # measuring may fail as the step did
                    self.close_block(self.now.k - first, weights, whole=True)
                self.save_checkpoint(Status.RUNNING, measured=False)
            raise
        self.close_block(
            self.now.k - first,
            weights,
            whole=bool(failures) or self.progress is not None,
        )
        if failures:
            self.bury(failures, steps[self.now.k - first - 1])
            if self.callback is not None and self.state.alive:
                self.call_back()

    def step(
        self,
        parameters: Parameters,
        cost: tuple[int, int],
        upper_tokens: Any,
        lower_tokens: Any,
        replaced: NDArray[np.bool_] | None,
        noted: bool,
    ) -> dict[int, str]:
        """One step of every living run. Returns the rows that cannot go on, and why; they keep their iterate."""
        method = self.method
        (
            k,
            x,
            upper_memory,
            lower_memory,
            memory,
            selected,
            upper_calls,
            lower_calls,
            _,
        ) = self.now
        # measure
        self.upper.tokens = upper_tokens
        self.lower.tokens = lower_tokens
        estimator, (from_upper, from_lower) = method.estimator, self.evaluate
        if (
            self.minibatches
        ):  # the estimates are the gradients, and nothing is remembered
            seen_a = from_upper(x)
            seen_b = from_lower(x)
            upper_memory = ()
            lower_memory = ()
        else:
            seen_a, a, upper_memory = estimate(
                estimator, "upper", from_upper, x, upper_memory, parameters, _zero
            )
            seen_b, b, lower_memory = estimate(
                estimator, "lower", from_lower, x, lower_memory, parameters, _zero
            )
        if self.in_direction:
            a = seen_a
            b = seen_b
        fg, gg = products(seen_a, seen_b)
        seen = (
            Measurement(fg, gg, **self.measured(seen_a, parameters))
            if self.measures
            else (fg, gg)
        )
        # decide
        multiplier, rule = self.decide.multiplier(parameters, seen, memory)
        # move
        pace = (
            -parameters.step_size
            if self.scale is None
            else -(parameters.step_size * self.scale(rule))[:, None]
        )
        moved, all_finite = descended(x, a, b, multiplier, pace)
        if noted:
            # At a given call count the run might as well have ended: then it is measured as a last iterate is.
            in_force = (
                method.at(max(0, k - 1))
                if isinstance(self.configuration.record, tuple)
                else None
            )
            self.recorder.add(
                parameters,
                upper_calls,
                lower_calls,
                x,
                np.atleast_1d(multiplier),
                memory,
                in_force,
            )
        failures: dict[int, str] = {}
        # A NaN or an infinity in a, b or λ always reaches the new iterate, so one look at it is enough.
        if not all_finite:
            fine = np.asarray(np.isfinite(moved).all(axis=1))
            each = np.atleast_1d(multiplier)
            failures = {
                int(row): fault(a[row], b[row], each[row])
                for row in np.flatnonzero(~fine)
            }
            moved = frozen(np.where(fine[:, None], moved, x))
            replaced = None if replaced is None else replaced & fine
            rule = tuple(
                np.where(fine, one, old) for one, old in zip(rule, memory, strict=True)
            )
        if replaced is not None:
            selected = Kept(
                np.where(replaced[:, None], x, selected.x),
                np.where(replaced, k, selected.step),
                tuple(
                    np.where(replaced, one, old)
                    for one, old in zip(memory, selected.rule, strict=True)
                ),
            )
        self.parameters = parameters
        upper_calls = upper_calls + cost[0]
        lower_calls = lower_calls + cost[1]
        now = (
            k + 1,
            moved,
            upper_memory,
            lower_memory,
            rule,
            selected,
            upper_calls,
            lower_calls,
            multiplier,
        )
        self.now = tuple.__new__(Now, now)  # what its name does, in half the time
        return failures

    def measured(self, upper: Array, parameters: Parameters) -> dict[str, Any]:
        """What else the rule asks for."""
        asked = self.method.measured
        x = self.now.x
        found = dict[str, Any]()
        if "ff" in asked:
            found["ff"] = dot(upper, upper)
        if "lower_value" in asked:
            if not parameters.lower_points:
                raise ValueError(
                    f"the rule of {self.method.name!r} needs the lower objective of every step's mini-batch, and "
                    f"{self.method.estimator!r} draws none in step {parameters.k}"
                )
            found["lower_value"] = self.lower.value(x, self.lower.tokens)
        if self.watching.on:
            found["watched"] = self.watching.found(x, self.now.upper, self.now.lower)
        return found

    def call_back(self) -> None:
        assert self.callback is not None
        assert self.parameters is not None
        record = recorded(
            self.now,
            self.parameters,
            self.configuration,
            self.state.alive,
            self.measurer,
        )
        if answered(self.callback, record):
            self.stopped = Status.CALLBACK

    def close_block(self, made: int, weights: Sequence[float], whole: bool) -> None:
        """Leave generators, weights and history as after `made` steps of the block; `whole`: all of it measured."""
        for stream in self.streams.values():
            stream.rewind(made)
        for weight in weights[:made]:
            self.weight += weight
        self.recorder.flush(self.state.alive, self.now.k, whole)

    def bury(self, failures: dict[int, str], parameters: Parameters) -> None:
        """Put aside the runs that cannot go on; the step that failed was charged but not made."""
        state = self.state
        now = self.now
        for row, reason in failures.items():
            run = state.alive[row]
            now.store(state, run, row, now.k - 1, Status.NON_FINITE)
            state.faults[run] = (
                f"run {self.configuration.runs[run]} at step {parameters.k}: {reason}; its last finite iterate is kept"
            )
        rows = [row for row in range(len(state.alive)) if row not in failures]
        state.alive = [state.alive[row] for row in rows]
        for stream in self.streams.values():
            stream.restrict(rows)
        self.now = now.of_rows(rows)

    def snapshot(self, status: Status, measured: bool = True) -> State:
        """The state as of now, whole and, but for emergencies, measured."""
        state = self.state
        now = self.now
        for row, run in enumerate(state.alive):
            now.store(state, run, row, now.k, status)
        state.k = now.k
        state.weight = self.weight
        state.memory = {"upper": now.upper, "lower": now.lower}
        state.streams = {name: stream.states() for name, stream in self.streams.items()}
        if measured:
            self.recorder.flush(state.alive, now.k)
        state.history = self.recorder.history()
        # An iterate is measured with the parameters of the step that it starts; the last one starts none, and takes
        # those in force: a schedule need not be defined beyond the last step.
        ends = [max(0, made - 1) for made in state.steps.tolist()]
        picks = state.selected_step.tolist()
        known = {
            k: self.method.at(k) for k in {*ends, *picks}
        }  # thousands of runs share few steps
        each = [known[k] for k in ends]
        chosen = [known[k] for k in picks]
        state.last_measures = {}
        state.selected_measures = {}
        if measured:
            state.last_measures = self.measurer.at(state.x, each, state.rule)
            state.selected_measures = self.measurer.at(
                state.selected, chosen, state.selected_rule
            )
        told = getattr(self.method.rule, "told", None)
        state.chosen = (
            {}
            if told is None
            else {n: np.asarray(v, np.float64) for n, v in told(state.rule).items()}
        )
        state.elapsed = time.perf_counter() - self.started
        return state

    def save_checkpoint(self, status: Status, measured: bool = True) -> None:
        assert self.checkpoint is not None
        try:
            self.snapshot(status, measured).save(self.checkpoint)
        except OSError as error:  # a full disk must not end a long run; what was saved before is still there
            message = (
                f"checkpoint not written at step {self.now.k}: {error}; the run goes on"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=4)

    def report(self) -> Progress:
        now = self.now
        c = self.configuration
        numbers: tuple[float, ...] = self.recorder.latest()
        if c.record is None and self.parameters is not None and self.state.alive:
            numbers = self.glance(now.x, now.multipliers, self.parameters, now.rule)
        calls = now.upper_calls + now.lower_calls
        fraction = max(now.k / (c.steps or math.inf), calls / (c.budget or math.inf))
        return Progress(now.k, calls, fraction, *numbers)


def _zero(gradient: Array) -> Array:
    """The scalar zero of an estimator's memory: a number for each run."""
    return 0 * gradient[:, :1]
