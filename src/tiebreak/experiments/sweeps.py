"""A sweep: many blocks of work, on any executor, kept as they are finished, with one share of all that is done.

Results do not depend on the executor, on the number of its workers, or on how often the sweep was stopped: blocks are
the same whoever runs them, and each run of a block has random streams of its own.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from math import fsum
from typing import Any, NamedTuple

from tiebreak.experiments.blocks import Block, Interrupted, Store
from tiebreak.experiments.engines import HERE, Engine, checked, gone, lost, opened
from tiebreak.experiments.tasks import SweepError, Task, one_thread, perform
from tiebreak.experiments.workers import Processes, cores
from tiebreak.interrupts import terminations
from tiebreak.progress import Share

_PATIENCE = 4.0  # seconds of work for which it does not pay to start processes
_LOOK = 5.0  # seconds, after which to see whether the executor is still there
_GRACE = 5.0  # seconds, for what blocks in flight have reached
_ATTEMPTS = 3  # of a block whose worker dies


class Swept(NamedTuple):
    """What came of a sweep.

    Attributes
    ----------
    blocks : dict of str to Block
        The finished ones by the names of their tasks, in the tasks' order.
    partial : dict of str to Block
        What a block that Ctrl-C cut short has reached, where it can tell.
    interrupted : bool
        Whether Ctrl-C ended the sweep.

    Examples
    --------
    >>> from tiebreak.experiments import solving
    >>> done = sweep(solving("mine", "tiebreak.problems:paper", "sdbgd", budget=1000, runs=2, seed=0), engine="here")
    >>> list(done.blocks), done.interrupted
    (['mine, runs 0 to 1'], False)
    """

    blocks: Mapping[str, Block]
    partial: Mapping[str, Block]
    interrupted: bool


def sweep(
    tasks: Sequence[Task],
    *,
    engine: Engine = None,
    store: Store | str | os.PathLike[str] | None = None,
    hear: Callable[[str, float], Any] | None = None,
) -> Swept:
    """Do all tasks, or what is left of them.

    Parameters
    ----------
    tasks : sequence of Task
        Each with a name of its own.
    engine : Executor, int, str or None
        Any :class:`concurrent.futures.Executor`, a number of local processes, or a Dask scheduler: its address, or
        "local:4". If None, this process alone, as long as seconds suffice; then as many processes as there are cores.
        "here" is this process alone, however long it takes.
    store : Store or path, optional
        Where finished blocks are kept. Those that are there already are not done again.
    hear : callable, optional
        Told the name of a task and the share of the whole sweep that is done.

    Raises
    ------
    SweepError
        Where a block's workers died three times, or the executor is of no more use.
    BlockingIOError
        Where another process is using the store.

    Notes
    -----
    An error in a block ends the sweep. Ctrl-C ends it and returns what is finished, SIGTERM ends the program with code
    143; both lose no more than the blocks in flight.

    Examples
    --------
    >>> from tiebreak.experiments import solving
    >>> tasks = solving("mine", "tiebreak.problems:paper", "sdbgd", budget=1000, runs=2, seed=0)
    >>> done = sweep(tasks, engine="here")
    >>> done.blocks[tasks[0].name].tables["last"]["calls"].tolist()
    [794, 794]
    """
    where = checked(engine)
    if len({task.name for task in tasks}) < len(tasks):
        raise ValueError(
            f"tasks={[task.name for task in tasks]!r} must have different names"
        )
    kept = store if isinstance(store, Store) or store is None else Store(store)
    with (
        terminations(),
        nullcontext() if kept is None or kept is store else kept,
        one_thread(),
    ):
        doing = _Sweep(tasks, kept, hear or (lambda name, share: None))
        try:
            doing.run(where)
        except KeyboardInterrupt as stop:
            if isinstance(stop, Interrupted):
                doing.partial[doing.current] = stop.block
            return Swept(doing.in_order(), doing.partial, True)
        return Swept(doing.in_order(), {}, False)


class _Sweep:
    def __init__(
        self,
        tasks: Sequence[Task],
        store: Store | None,
        hear: Callable[[str, float], Any],
    ) -> None:
        self.tasks = tasks
        self.store = store
        self.hear = hear
        self.done: dict[str, Block] = {}
        self.partial: dict[str, Block] = {}
        self.current = ""
        self.begun: dict[str, float] = {}  # shares of the tasks that were heard of
        self.news: tuple[str, float] = (
            "",
            0.0,
        )  # the newest share that came with numbers, and whose
        # Shares of the bar: tasks of unknown length count as much as a short one.
        least = min((task.seconds for task in tasks if task.seconds > 0), default=1.0)
        self.weights = {task.name: task.seconds or least for task in tasks}
        self.total = fsum(self.weights.values())

    def in_order(self) -> dict[str, Block]:
        return {
            task.name: self.done[task.name]
            for task in self.tasks
            if task.name in self.done
        }

    def run(self, engine: Engine) -> None:
        for task in self.tasks:
            block = self.store.read(task) if self.store is not None else None
            if block is not None:
                self.finish(task, block, keep=False)
        left: Sequence[Task] = [
            task for task in self.tasks if task.name not in self.done
        ]
        if engine in (None, HERE):
            left = self.alone(left, _PATIENCE if engine is None else float("inf"))
            engine = min(cores(), len(left))
        if left:
            with opened(engine) as executor:
                self.together(left, executor)

    def alone(self, tasks: Sequence[Task], patience: float) -> Sequence[Task]:
        """Do tasks here, one after another, until others' help would pay; the tasks that are left then."""
        began = time.monotonic()
        for i, task in enumerate(tasks):
            left = tasks[i:]
            spent = time.monotonic() - began
            if (
                min(cores(), len(left)) > 1
                and max(spent, sum(t.seconds for t in left)) > patience
            ):
                return left
            self.current = task.name
            self.finish(task, perform(task, partial(self.tell, task)))
        return ()

    def together(self, tasks: Sequence[Task], executor: Any) -> None:
        """Do tasks on an executor, the long ones first; a worker that dies costs its block, which is done again."""
        deaths: Counter[str] = Counter()
        if isinstance(
            executor, Processes
        ):  # others cannot tell before a block is finished
            executor.hear = self.tell_of
        running: dict[Future[Any], Task] = {}

        def submit(task: Task) -> None:
            try:
                running[executor.submit(perform, task)] = task
            except lost() as error:
                raise SweepError(
                    f"{task.name}: the executor is of no more use: {_why(error)}"
                ) from None

        try:
            for task in sorted(tasks, key=lambda task: -task.seconds):
                submit(task)
            while running:
                if gone(executor):
                    raise SweepError("the scheduler was lost")
                for future in wait(running, _LOOK, FIRST_COMPLETED).done:
                    task = running.pop(future)
                    try:
                        block = future.result()
                    except lost() as error:
                        deaths[task.name] += 1
                        if deaths[task.name] == _ATTEMPTS:
                            times = f"its worker died {_ATTEMPTS} times"
                            raise SweepError(
                                f"{task.name}: {times}; the last time, {_why(error)}"
                            ) from None
                        submit(task)
                    else:
                        self.finish(task, block)
        except KeyboardInterrupt:
            self.collect(running, executor)
            raise
        finally:
            for future in running if not gone(executor) else ():
                future.cancel()

    def collect(self, running: Mapping[Future[Any], Task], executor: Any) -> None:
        """What the blocks in flight have reached, if they can tell in a moment."""
        if not isinstance(executor, Processes):
            return
        for future in running:
            future.cancel()  # all that has not begun
        executor.interrupt()
        for future in wait(running, timeout=_GRACE).done:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, Interrupted):
                self.partial[running[future].name] = error.block

    def finish(self, task: Task, block: Block, keep: bool = True) -> None:
        if not isinstance(block, Block):
            raise TypeError(
                f"{task.name}: {task.function['where']} gave {type(block).__name__}; it must give a Block"
            )
        block = Block(
            block.tables, json.loads(json.dumps(block.facts))
        )  # as it will be when it is read again
        if keep and self.store is not None:
            self.store.write(task, block)
        self.done[task.name] = block
        self.tell(task, 0.0)

    def tell_of(self, told: Any) -> None:
        """Tell of what a process is doing, by the name of its task: in its thread, so nothing is changed here."""
        name, share = told
        self.tell(next(task for task in self.tasks if task.name == name), share)

    def tell(self, task: Task, share: float) -> None:
        """Tell of a task, this share of which is done besides all that are finished.

        One that ends without numbers of its own is told with the newest there are: else a sweep of many short tasks
        would show none.
        """
        self.begun[task.name] = float(share)
        # Rounded once, so that the share never falls by a rounding.
        shares = tuple(self.begun.items()) + tuple(
            (name, 1.0) for name in tuple(self.done)
        )
        done = fsum(self.weights[name] * part for name, part in dict(shares).items())
        name = task.name
        news = share
        if getattr(share, "now", None) is not None:
            self.news = name, share
        elif task.name in self.done and self.news[0]:
            name, news = self.news
        self.hear(name, Share.of(min(1.0, done / self.total), news))


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__


def split(runs: int, size: int) -> list[range]:
    """The numbers of the runs of each block: as few blocks of at most this size as will do, about equal.

    >>> split(10, 4)
    [range(0, 4), range(4, 7), range(7, 10)]
    """
    count = -(-runs // size)
    ends = [(runs * i + count - 1) // count for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(ends)]
