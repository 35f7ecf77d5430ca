"""The only loop: sample, make a step, record. :mod:`tiebreak.solver.step` has the step."""

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
from tiebreak.files import FilePath, locked
from tiebreak.interrupts import interrupts
from tiebreak.progress import Progress, progress_line
from tiebreak.result import Result, Status
from tiebreak.schedules import Parameters
from tiebreak.solver.arguments import Setup, prepare
from tiebreak.solver.budget import Charged, Steps
from tiebreak.solver.callbacks import Record, asks_to_stop, record_of
from tiebreak.solver.check_vectorized import check_runs_are_independent
from tiebreak.solver.checkpoint import State
from tiebreak.solver.history import Measurer, Recorder, recorded_steps, start_values
from tiebreak.solver.result_warnings import warn_of_faults
from tiebreak.solver.selection import replacements
from tiebreak.solver.step import Stepper, StepState
from tiebreak.solver.streams import PURPOSES, Stream, generators

_CHECKPOINT_EVERY = 1000  # steps


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
    checkpoint_every: int | None = None,
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
        Called after every step with a :class:`~tiebreak.solver.callbacks.Record`; stops the run by returning True or raising
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
        Where to save the run, atomically: at its end, when an error, Ctrl-C or SIGTERM (exit code 143) cuts it short, and
        in between. Another process that is writing it raises BlockingIOError.
    checkpoint_every : int, optional
        Save after so many steps. By default the run is saved every 1000 steps, but less often if saving a long history
        would take more than a tenth of the time.
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
    with locked(checkpoint):  # before reading: another process may be writing
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
            check_runs_are_independent(
                setup.method, setup.lower.dimension, setup.lower.dtype
            )
        if not (callback is None or callable(callback)):
            raise TypeError(
                f"callback={callback!r} must be a function of a record, or None"
            )
        if not (isinstance(progress, bool) or callable(progress)):
            raise TypeError(f"progress={progress!r} must be True, False or a function")
        if checkpoint_every is not None:
            checkpoint_every = whole("checkpoint_every", checkpoint_every)
        resumed_at = None if resume is None else setup.state.k
        line = progress_line() if progress is True else nullcontext(progress or None)
        with line as report:
            solver = _Solver(setup, callback, report, checkpoint, checkpoint_every)
            result = solver.run().result()
    return warn_of_faults(result, resumed_at)


class _Solver:
    """The loop: blocks of steps that fit the limits, until something stops it."""

    def __init__(
        self,
        setup: Setup,
        callback: Callable[[Record], Any] | None,
        report: Callable[[Progress], Any] | None,
        checkpoint: FilePath | None,
        checkpoint_every: int | None,
    ) -> None:
        self.started = time.perf_counter()
        self.configuration = configuration = setup.configuration
        self.method = setup.method
        self.upper = setup.upper
        self.lower = setup.lower
        self.callback = callback
        self.report = report
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every or _CHECKPOINT_EVERY
        # Without a given number, saving takes at most a tenth of the time.
        self.limits_saving = checkpoint_every is None
        self.next_save = 0.0
        self.state = state = setup.state
        self.weight = state.weight
        self.now = StepState.of(state)
        self.stepper = Stepper(self.method, self.upper, self.lower, state.start)
        self.measurer = Measurer(self.method, self.upper, self.lower)
        runs = len(configuration.runs)
        self.recorder = Recorder(
            self.measurer, runs, configuration.keep_iterates, state.history
        )
        seed = SeedSequence(configuration.entropy, spawn_key=configuration.spawn_key)
        rngs = generators(seed, [configuration.runs[row] for row in state.alive])
        draws = (self.upper.draw, self.lower.draw, self.select)
        streams = map(Stream, rngs, draws)
        self.streams = dict(zip(PURPOSES, streams, strict=True))
        for name, states in state.streams.items():
            self.streams[name].restore(states)
        if (
            not state.start_measures
        ):  # for the warning about a g that ended above its start
            state.start_measures = start_values(
                state.start, (self.upper, self.lower), runs
            )
        self.parameters: Parameters | None = None  # of the step just made
        self.fitting: Steps | None = None  # the steps that come next
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
                if self.report is not None:
                    self.report(self.progress())
                due = self.now.k % self.checkpoint_every == 0
                if self.limits_saving:
                    due = due and time.perf_counter() >= self.next_save
                if self.checkpoint is not None and self.stopped is None and due:
                    begin = time.perf_counter()
                    self.save_checkpoint(Status.RUNNING)
                    end = time.perf_counter()
                    self.next_save = end + 10 * (end - begin)
            if self.checkpoint is not None:
                self.save_checkpoint(self.stopped or Status.STEPS)
        return self.snapshot(self.stopped or Status.STEPS)

    def upcoming(self) -> tuple[list[Charged], Status]:
        """The next steps that fit the limits, a block at most, and the limit that ends them."""
        k = self.now.k
        limits = self.configuration
        alive = len(self.state.alive)
        size = min(self.upper.block_size(alive), self.lower.block_size(alive))
        if self.checkpoint is not None:  # a block ends where a checkpoint is due
            size = min(size, self.checkpoint_every - k % self.checkpoint_every)
        if (
            self.fitting is None or self.fitting.k != k
        ):  # at first, and after an incomplete block
            self.fitting = Steps(
                self.method,
                steps=limits.steps,
                budget=limits.budget,
                k=k,
                spent=self.now.calls,
            )
        steps = self.fitting.block(
            size, self.upper.samples_ahead, self.lower.samples_ahead
        )
        return steps, self.fitting.ended

    def select(self, rngs: Any, weights: Sequence[float]) -> NDArray[np.bool_]:
        """Draw which steps of a block replace the selected iterate."""
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
            upper_sizes = [p.upper_batch if p.upper_points else 0 for p in steps]
            lower_sizes = [p.lower_batch if p.lower_points else 0 for p in steps]
            upper_tokens = self.streams["upper"].block(upper_sizes)
            lower_tokens = self.streams["lower"].block(lower_sizes)
            replaced = self.streams["selection"].block(weights)
            # Testing all steps at once is faster than testing at every step.
            some = replaced.any(axis=1).tolist()
            selecting = [
                row if any_row else None
                for row, any_row in zip(replaced, some, strict=True)
            ]
            costs = (sum(cost) for _, cost in charged)
            calls = list(accumulate(costs, initial=self.now.calls))
            noted = recorded_steps(self.configuration.record, first, len(steps), calls)
            rows = zip(
                charged, upper_tokens, lower_tokens, selecting, noted, strict=True
            )
            with np.errstate(all="ignore"):
                for (parameters, cost), upper, lower, selected, note in rows:
                    before = self.now
                    now, failures = self.stepper.step(
                        before, parameters, cost, upper, lower, selected
                    )
                    if note:
                        self.recorder.add(
                            before, self.in_force(parameters), now.multipliers
                        )
                    self.parameters = parameters
                    self.now = now
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
                    self.close_block(self.now.k - first, weights, complete=True)
                self.save_checkpoint(Status.RUNNING, measured=False)
            raise
        complete = bool(failures) or self.report is not None
        self.close_block(self.now.k - first, weights, complete)
        if failures:
            self.bury(failures, steps[self.now.k - first - 1])
            if self.callback is not None and self.state.alive:
                self.call_back()

    def in_force(self, parameters: Parameters) -> Parameters:
        """The parameters to measure a recorded x_k with: those of step k.

        At a call count of `record` the run might as well have ended; then x_k is measured as a last iterate is, with
        the parameters of the step before.
        """
        if isinstance(self.configuration.record, tuple):
            return self.method.at(max(0, parameters.k - 1))
        return parameters

    def call_back(self) -> None:
        """Show the step to the callback, which may stop the run."""
        assert self.callback is not None
        assert self.parameters is not None
        record = record_of(
            self.now,
            self.parameters,
            self.configuration,
            self.state.alive,
            self.measurer,
        )
        if asks_to_stop(self.callback, record):
            self.stopped = Status.CALLBACK

    def close_block(self, count: int, weights: Sequence[float], complete: bool) -> None:
        """Leave generators, weights and history as after `count` steps of the block; `complete`: all measured."""
        for stream in self.streams.values():
            stream.rewind(count)
        for weight in weights[:count]:
            self.weight += weight
        self.recorder.flush(self.state.alive, self.now.k, complete)

    def bury(self, failures: dict[int, str], parameters: Parameters) -> None:
        """Put aside the runs that cannot go on; the step that failed was charged but not made."""
        state = self.state
        for row, reason in failures.items():
            run = state.alive[row]
            self.now.store(state, run, row, self.now.k - 1, Status.NON_FINITE)
            state.faults[run] = (
                f"run {self.configuration.runs[run]} at step {parameters.k}: {reason}; its last finite iterate is kept"
            )
        rows = [row for row in range(len(state.alive)) if row not in failures]
        state.alive = [state.alive[row] for row in rows]
        for stream in self.streams.values():
            stream.restrict(rows)
        self.now = self.now.of_rows(rows)

    def snapshot(self, status: Status, measured: bool = True) -> State:
        """The whole state as of now, measured except in emergencies."""
        state = self.state
        now = self.now
        for row, run in enumerate(state.alive):
            now.store(state, run, row, now.k, status)
        state.k = now.k
        state.weight = self.weight
        state.memory = {"upper": now.upper, "lower": now.lower}
        state.streams = {name: stream.states() for name, stream in self.streams.items()}
        state.last_measures = {}
        state.selected_measures = {}
        if measured:
            self.recorder.flush(state.alive, now.k)
            # An iterate is measured with the parameters of the following step. The last iterate takes the parameters of
            # the step before: a schedule need not be defined beyond the last step.
            ends = [max(0, steps - 1) for steps in state.steps.tolist()]
            picks = state.selected_step.tolist()
            at = {
                k: self.method.at(k) for k in {*ends, *picks}
            }  # thousands of runs share few steps
            state.last_measures = self.measurer.at(
                state.x, [at[k] for k in ends], state.rule
            )
            state.selected_measures = self.measurer.at(
                state.selected, [at[k] for k in picks], state.selected_rule
            )
        state.history = self.recorder.history()
        state.chosen = self.method.chosen(state.rule)
        state.elapsed = time.perf_counter() - self.started
        return state

    def save_checkpoint(self, status: Status, measured: bool = True) -> None:
        """Write the state; a full disk must not end a long run, and the last checkpoint is still there."""
        assert self.checkpoint is not None
        try:
            self.snapshot(status, measured).save(self.checkpoint)
        except OSError as error:
            message = (
                f"checkpoint not written at step {self.now.k}: {error}; the run goes on"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=4)

    def progress(self) -> Progress:
        """How far the run is."""
        now = self.now
        limits = self.configuration
        numbers = self.recorder.latest()
        if limits.record is None and self.parameters is not None and self.state.alive:
            numbers = self.recorder.glance(now, self.parameters)
        fraction = max(
            now.k / (limits.steps or math.inf), now.calls / (limits.budget or math.inf)
        )
        return Progress(now.k, now.calls, fraction, *numbers)
