"""A sweep: many tasks on any engine, finished blocks kept, and one share of all that is done.

Results depend neither on the engine nor on the number of workers nor on how often the sweep was stopped: each run of
a block has random streams of its own.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import pairwise
from math import fsum
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from tiebreak.files import FilePath
from tiebreak.interrupts import terminations
from tiebreak.progress import Share
from tiebreak.studies.engines import (
    HERE,
    Engine,
    Workers,
    checked_engine,
    cores,
    death_errors,
    opened,
)
from tiebreak.studies.store import Store
from tiebreak.studies.task import Block, Interrupted, Task, one_thread, perform
from tiebreak.studies.user_files import SweepError

Blocks: TypeAlias = Mapping[str, Block]
#: Told the name of a task and the share of everything that is done.
Hear: TypeAlias = Callable[[str, float], Any]

_PATIENCE = 4.0  # seconds of work for which starting processes does not pay
_LOOK = 0.2  # seconds between two looks at the reports of workers
_GRACE = 5.0  # seconds for interrupted blocks to end
_ATTEMPTS = 3  # of a block whose worker dies


class SweepResult(NamedTuple):
    """The blocks of a sweep.

    Attributes
    ----------
    blocks : dict of str to Block
        Finished blocks by the names of their tasks, in the order of the tasks.
    partial : dict of str to Block
        The part of a block that was done when Ctrl-C came, if the block can tell.
    interrupted : bool
        Whether Ctrl-C ended the sweep.
    seconds : float
    """

    blocks: Blocks
    partial: Blocks = MappingProxyType({})
    interrupted: bool = False
    seconds: float = 0.0


def sweep(
    tasks: Sequence[Task] | Callable[[Blocks], Iterable[Task]],
    *,
    engine: Engine = None,
    store: Store | FilePath | None = None,
    progress: Hear | None = None,
) -> SweepResult:
    """Do all tasks, except those with a block in the store.

    Parameters
    ----------
    tasks : sequence of Task, or callable
        Each with a name of its own. A callable receives the finished blocks and returns tasks; it is called until none
        of them is new.
    engine : Executor, int, str or None
        Any :class:`concurrent.futures.Executor`, a number of local processes, or a Dask scheduler: its address, or
        "local:4". If None, this process alone, as long as seconds suffice; then as many processes as there are cores.
        "here" is this process alone, however long it takes.
    store : Store or path, optional
        The folder of finished blocks.
    progress : callable, optional
        Told the name of a task and the share of the whole sweep that is done.

    Raises
    ------
    SweepError
        If the workers of a block died three times, or the executor is of no more use.
    BlockingIOError
        If another process is using the store.

    Notes
    -----
    An error in a block ends the sweep. Ctrl-C ends it and returns what is finished, SIGTERM ends the program with code
    143; both lose no more than the blocks in flight. Local processes import the main program again, so that a script
    that sweeps needs ``if __name__ == "__main__":``.

    Examples
    --------
    >>> from tiebreak.studies import solving
    >>> tasks = solving("mine", "tiebreak.problems:paper", "sdbgd", budget=1000, runs=2, seed=0)
    >>> result = sweep(tasks, engine="here")
    >>> result.blocks[tasks[0].name].tables["last"]["calls"].tolist()
    [794, 794]
    """
    began = time.perf_counter()
    engine = checked_engine(engine)
    folder = store
    if store is not None and not isinstance(store, Store):
        folder = Store(store)
    lock = nullcontext() if folder is store else folder
    with terminations(), lock, one_thread(), _Sweep(engine, folder, progress) as doing:  # type: ignore[union-attr,arg-type]
        interrupted = False
        try:
            doing.run(tasks if callable(tasks) else lambda blocks: tasks)
        except KeyboardInterrupt as stop:
            interrupted = True
            if isinstance(stop, Interrupted):
                doing.partial[doing.current] = stop.block
        seconds = time.perf_counter() - began
        return SweepResult(doing.in_order(), doing.partial, interrupted, seconds)


class _Sweep:
    def __init__(
        self, engine: Engine, store: Store | None, progress: Hear | None
    ) -> None:
        self.engine = engine
        self.store = store
        self.progress = progress or (lambda name, share: None)
        self.tasks: dict[str, Task] = {}
        self.done: dict[str, Block] = {}
        self.partial: dict[str, Block] = {}
        self.current = ""  # the task of the main process
        self.shares: dict[str, float] = {}  # of the tasks in progress
        self.newest: tuple[str, float] = ("", 0.0)  # the newest share with numbers
        self.resources = ExitStack()
        self.workers: Workers | None = None

    def __enter__(self) -> "_Sweep":
        return self

    def __exit__(self, *error: object) -> None:
        self.resources.close()

    def in_order(self) -> dict[str, Block]:
        return {name: self.done[name] for name in self.tasks if name in self.done}

    def run(self, tasks_after: Callable[[Blocks], Iterable[Task]]) -> None:
        """Do the tasks of all stages."""
        while new := self.new_tasks(tasks_after(self.in_order())):
            for task in new:
                block = self.store.read(task) if self.store is not None else None
                if block is not None:
                    self.finish(task, block)
            waiting = [task for task in new if task.name not in self.done]
            if self.workers is None and self.engine in (None, HERE):
                waiting = self.work_here(waiting)
            if waiting:
                self.work_elsewhere(waiting)

    def new_tasks(self, tasks: Iterable[Task]) -> list[Task]:
        tasks = list(tasks)
        names = [task.name for task in tasks]
        if len(set(names)) < len(names):
            raise ValueError(f"tasks={names!r} must have different names")
        for task in tasks:
            earlier = self.tasks.get(task.name, task)
            if earlier.fingerprint != task.fingerprint:
                raise ValueError(f"tasks: two different ones are called {task.name!r}")
        new = [task for task in tasks if task.name not in self.tasks]
        self.tasks |= {task.name: task for task in new}
        return new

    def work_here(self, tasks: list[Task]) -> list[Task]:
        """Do tasks in this process, one after another, until other processes would pay; the tasks that are left."""
        began = time.monotonic()
        for i, task in enumerate(tasks):
            remaining = tasks[i:]
            expected = sum(each.seconds for each in remaining)
            long = max(time.monotonic() - began, expected) > _PATIENCE
            if self.engine is None and long and min(cores(), len(remaining)) > 1:
                return remaining
            self.current = task.name
            block = perform(task, partial(self.tell, task.name))
            self.keep(task, block)
        return []

    def work_elsewhere(self, tasks: Sequence[Task]) -> None:
        """Do tasks on workers, the long ones first; a worker that dies costs its block, which is done again."""
        if self.workers is None:
            engine = self.engine
            if engine in (None, HERE):
                engine = min(cores(), len(tasks))
            self.workers = self.resources.enter_context(opened(engine))
        waiting = deque(sorted(tasks, key=lambda task: -task.seconds))
        running: dict[Future[Block], Task] = {}
        deaths: Counter[str] = Counter()
        try:
            while waiting or running:
                while waiting and self.workers.has_room():
                    task = waiting.popleft()
                    running[self.submit(task)] = task
                for future in self.finished(running):
                    task = running.pop(future)
                    try:
                        self.keep(task, future.result())
                    except death_errors() as error:
                        deaths[task.name] += 1
                        self.check_deaths(task, deaths[task.name], error)
                        waiting.appendleft(task)
        except KeyboardInterrupt:
            self.collect_parts(running)
            raise
        finally:
            for future in running if not self.workers.lost else ():
                future.cancel()

    def submit(self, task: Task) -> Future[Block]:
        assert self.workers is not None
        try:
            return self.workers.submit(task)
        except death_errors() as error:
            raise SweepError(
                f"{task.name}: the executor is of no more use: {_reason(error)}"
            ) from None

    def finished(
        self, running: Mapping[Future[Block], Task]
    ) -> Iterator[Future[Block]]:
        assert self.workers is not None
        if self.workers.lost:
            raise SweepError("the scheduler was lost")
        done = wait(running, _LOOK, FIRST_COMPLETED).done
        for name, share in self.workers.reports():
            self.tell(name, share)
        return iter(done)

    def check_deaths(self, task: Task, deaths: int, error: BaseException) -> None:
        if deaths == _ATTEMPTS:
            raise SweepError(
                f"{task.name}: its worker died {deaths} times; the last time, {_reason(error)}"
            ) from None

    def collect_parts(self, running: Mapping[Future[Block], Task]) -> None:
        """Take the parts of the blocks in flight that workers can give in a moment."""
        assert self.workers is not None
        for future in running:
            future.cancel()  # waiting tasks
        self.workers.interrupt()
        active = [future for future in running if not future.cancelled()]
        local = type(self.workers) is not Workers
        for future in wait(active, _GRACE if local else 0).done:
            error = future.exception()
            if isinstance(error, Interrupted):
                self.partial[running[future].name] = error.block

    def keep(self, task: Task, block: Block) -> None:
        if self.store is not None:
            self.store.write(task, block)
        self.finish(task, block)

    def finish(self, task: Task, block: Block) -> None:
        self.done[task.name] = block
        self.tell(task.name, 0.0)

    def tell(self, name: str, share: float) -> None:
        """Tell of a task, this share of which is done, and of all that is finished.

        A task that ends without numbers of its own is told with the newest numbers: a sweep of many short tasks would
        show none otherwise.
        """
        self.shares[name] = 1.0 if name in self.done else float(share)
        shortest = min(
            (t.seconds for t in self.tasks.values() if t.seconds), default=1.0
        )
        weights = {name: task.seconds or shortest for name, task in self.tasks.items()}
        # Sums are rounded once, so the share never falls by a rounding error.
        done = fsum(weights[name] * part for name, part in self.shares.items())
        news = share
        if getattr(share, "now", None) is not None:
            self.newest = name, share
        elif name in self.done and self.newest[0]:
            name, news = self.newest
        self.progress(name, Share.of(min(1.0, done / fsum(weights.values())), news))


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def split(runs: int, size: int) -> list[range]:
    """The numbers of the runs of each block: the fewest blocks of at most this size, about equal.

    >>> split(10, 4)
    [range(0, 4), range(4, 7), range(7, 10)]
    """
    count = -(-runs // size)
    ends = [(runs * i + count - 1) // count for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(ends)]
