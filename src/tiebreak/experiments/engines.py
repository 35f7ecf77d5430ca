"""Where a sweep is run: an executor for what a user says, be it a number of processes or a Dask scheduler."""

import re
import sys
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from typing import Any, TypeAlias

from tiebreak.checks import install, whole
from tiebreak.experiments.workers import Processes

#: An executor, a number of local processes, a Dask scheduler ("tcp://host:8786", or "local:4" for one of its own), or
#: None for the default; "here" for this process alone.
Engine: TypeAlias = Executor | int | str | None

HERE = "here"

_WAIT = 30  # seconds, for a scheduler and its first worker


def checked(engine: Any) -> Engine:
    """What a user gave; ValueError if it is nothing that work can be given to."""
    if engine is None or isinstance(engine, Executor):
        return engine
    if isinstance(engine, str):
        if engine != HERE and not re.fullmatch(
            r"local:[1-9]\d{0,3}|[a-z]+://\S+", engine
        ):
            raise ValueError(
                f"scheduler={engine!r} must be 'tcp://host:port', or 'local:4' for four workers here"
            )
        return engine
    return whole("workers", engine)


def opened(engine: Executor | int | str) -> AbstractContextManager[Executor]:
    """The executor, while it is needed; one that was given is left open."""
    if isinstance(engine, Executor):
        return nullcontext(engine)
    return _dask(engine) if isinstance(engine, str) else _processes(engine)


def lost() -> tuple[type[BaseException], ...]:
    """The errors that say that a worker died, and nothing about the work."""
    dask: Any = sys.modules.get("distributed")
    return (BrokenExecutor, CancelledError) + (
        () if dask is None else (dask.KilledWorker,)
    )


def gone(executor: Executor) -> bool:
    """Whether the executor has lost its scheduler for good. Dask's futures never end then, and nobody says so."""
    client = getattr(executor, "_client", None)
    return getattr(client, "status", None) in ("closed", "closing")


@contextmanager
def _processes(workers: int) -> Iterator[Executor]:
    executor = Processes(workers)
    try:
        yield executor
    finally:
        executor.shutdown(
            wait=False
        )  # nothing is left to do, or nothing is to be waited for


@contextmanager
def _dask(scheduler: str) -> Iterator[Executor]:
    try:
        dask: Any = import_module(
            "distributed"
        )  # by name: few of its functions have types
    except ImportError:
        raise ValueError(
            f"scheduler={scheduler!r} needs Dask: {install('dask')}"
        ) from None
    with ExitStack() as stack:
        try:
            where: Any = scheduler
            if scheduler.startswith(
                "local:"
            ):  # Dask itself sees to one thread of the numerical libraries in each
                # A worker that is killed is started again, however often: not given up if it is away at a bad moment.
                patient = {"distributed.deploy.lost-worker-timeout": "1000 days"}
                stack.enter_context(import_module("dask").config.set(patient))
                options = {
                    "threads_per_worker": 1,
                    "dashboard_address": None,
                    "silence_logs": "ERROR",
                }
                where = stack.enter_context(
                    dask.LocalCluster(n_workers=int(scheduler[6:]), **options)
                )
            client = stack.enter_context(
                dask.Client(where, timeout=_WAIT, set_as_default=False)
            )
            client.wait_for_workers(1, timeout=_WAIT)
        except (TimeoutError, OSError) as error:
            raise ValueError(
                f"scheduler={scheduler!r} cannot be reached, or has no workers: {error}"
            ) from None
        yield client.get_executor(pure=False)
