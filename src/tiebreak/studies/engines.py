"""Where tasks are done: in this process, in other processes on this machine, on any executor, or on a Dask cluster."""

import _thread
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
)
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import Any, TypeAlias

from tiebreak.checks import install, whole
from tiebreak.studies.task import Block, Task, perform

#: An executor, a number of local processes, a Dask scheduler ("tcp://host:8786", or "local:4" to start one), or None
#: for the default; "here" for this process alone.
Engine: TypeAlias = Executor | int | str | None

HERE = "here"
_WAIT = 30  # seconds, for a scheduler and a first worker
_OFTEN = 0.2  # seconds between two reports of a block
_CONTEXT = multiprocessing.get_context("spawn")


def checked_engine(engine: Any) -> Engine:
    """The engine, or ValueError if no work can be given to it."""
    if engine is None or isinstance(engine, Executor):
        return engine
    if not isinstance(engine, str):
        return whole("workers", engine)
    if engine != HERE and not re.fullmatch(r"local:[1-9]\d{0,3}|[a-z]+://\S+", engine):
        raise ValueError(
            f"scheduler={engine!r} must be 'tcp://host:port', or 'local:4' for four workers here"
        )
    return engine


def cores() -> int:
    """The processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """Tasks on an executor: all are given to it at once."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def has_room(self) -> bool:
        """Whether a task may be submitted now."""
        return True

    def submit(self, task: Task) -> Future[Block]:
        """Begin a task."""
        return self.executor.submit(perform, task)

    def reports(self) -> Iterator[tuple[str, float]]:
        """The names of tasks and their shares that are done, as far as anything is reported."""
        return iter(())

    def interrupt(self) -> None:
        """Let the tasks that are being done end with what they have."""

    @property
    def lost(self) -> bool:
        """Whether the executor is of no more use. Futures of Dask never end after their client was closed."""
        client = getattr(self.executor, "_client", None)
        return getattr(client, "status", None) in ("closed", "closing")


class LocalWorkers(Workers):
    """Processes on this machine. Each has a pool of its own, so that a process that dies breaks no other."""

    def __init__(self, count: int) -> None:
        self._processes = [_Process() for _ in range(count)]

    def has_room(self) -> bool:
        """Whether a process is idle."""
        return any(process.idle for process in self._processes)

    def submit(self, task: Task) -> Future[Block]:
        """Begin a task in an idle process."""
        process = next(process for process in self._processes if process.idle)
        return process.submit(task)

    def reports(self) -> Iterator[tuple[str, float]]:
        """The reports of all processes since the last call."""
        for process in self._processes:
            yield from process.reports()

    def interrupt(self) -> None:
        """Press Ctrl-C in each process."""
        for process in self._processes:
            process.interrupt()

    def close(self) -> None:
        """End all processes at once."""
        for process in self._processes:
            process.close()

    @property
    def lost(self) -> bool:
        """A process that died is started again."""
        return False


class _Process:
    """A pool of one process, with a pipe: the process reports its progress, and ends when the pipe is closed."""

    def __init__(self) -> None:
        self.pool: ProcessPoolExecutor | None = None
        self.future: Future[Block] | None = None

    @property
    def idle(self) -> bool:
        return self.future is None or self.future.done()

    def submit(self, task: Task) -> Future[Block]:
        if self.future is not None and isinstance(_error(self.future), BrokenExecutor):
            self.close()
        if self.pool is not None:
            self.future = self.pool.submit(_work, task)
            return self.future
        self.pipe, other = _CONTEXT.Pipe()
        self.pool = ProcessPoolExecutor(1, _CONTEXT, _start, (other,))
        with _ctrl_c_blocked():  # the new process inherits the mask
            self.future = self.pool.submit(_work, task)
        other.close()
        return self.future

    def reports(self) -> Iterator[tuple[str, float]]:
        with suppress(EOFError, OSError):
            while self.pool is not None and self.pipe.poll():
                yield self.pipe.recv()

    def interrupt(self) -> None:
        if self.pool is not None and not self.idle:
            with suppress(OSError):
                self.pipe.send("interrupt")

    def close(self) -> None:
        if self.pool is not None:
            self.pipe.close()
            self.pool.shutdown(cancel_futures=True)
            self.pool = None


def _error(future: Future[Any]) -> BaseException | None:
    return None if future.cancelled() else future.exception()


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the process of a pool -----------------------------------------------------------------------------------------

_pipe: Any = None
_interrupted = threading.Event()
_reported = -_OFTEN


def _start(pipe: Any) -> None:
    """Begin a process: Ctrl-C is for the parent, which tells its processes; they end with it."""
    global _pipe
    _pipe = pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    threading.Thread(target=_listen, args=(pipe,), daemon=True).start()


def _listen(pipe: Any) -> None:
    try:
        while True:
            pipe.recv()
            _interrupted.set()
            _thread.interrupt_main()
    except (EOFError, OSError):
        os._exit(0)  # the parent has ended or closed the pipe


def _work(task: Task) -> Block:
    newest = 0.0

    def report(share: float) -> None:
        nonlocal newest
        global _reported
        newest = share
        if time.monotonic() - _reported > _OFTEN:
            _reported = time.monotonic()
            _pipe.send((task.name, share))

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if _interrupted.is_set():  # before the task began
            raise KeyboardInterrupt
        block = perform(task, report)
        if newest:  # the last report may have come too soon after another
            _pipe.send((task.name, newest))
        return block
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


# --- opening ----------------------------------------------------------------------------------------------------------


def death_errors() -> tuple[type[BaseException], ...]:
    """The errors that say that a worker died, and nothing about its task."""
    dask: Any = sys.modules.get("distributed")
    if dask is None:
        return BrokenExecutor, CancelledError
    return BrokenExecutor, CancelledError, dask.KilledWorker


@contextmanager
def opened(engine: Executor | int | str) -> Iterator[Workers]:
    """The workers of an engine; an executor of the user's is left open."""
    if isinstance(engine, Executor):
        yield Workers(engine)
    elif isinstance(engine, str):
        with _dask(engine) as executor:
            yield Workers(executor)
    else:
        workers = LocalWorkers(engine)
        try:
            yield workers
        finally:
            workers.close()


@contextmanager
def _dask(scheduler: str) -> Iterator[Executor]:
    try:
        dask: Any = import_module("distributed")  # few functions of Dask have types
    except ImportError:
        raise ValueError(
            f"scheduler={scheduler!r} needs Dask: {install('dask')}"
        ) from None
    with ExitStack() as stack:
        try:
            address: Any = scheduler
            if scheduler.startswith("local:"):
                # Dask starts killed workers again, however often.
                patient = {"distributed.deploy.lost-worker-timeout": "1000 days"}
                stack.enter_context(import_module("dask").config.set(patient))
                cluster = dask.LocalCluster(
                    n_workers=int(scheduler[6:]),
                    threads_per_worker=1,
                    dashboard_address=None,
                    silence_logs="ERROR",
                )
                address = stack.enter_context(cluster)
            client = dask.Client(address, timeout=_WAIT, set_as_default=False)
            stack.enter_context(client)
            client.wait_for_workers(1, timeout=_WAIT)
        except (TimeoutError, OSError) as error:
            raise ValueError(
                f"scheduler={scheduler!r} cannot be reached, or has no workers: {error}"
            ) from None
        yield client.get_executor(pure=False)
