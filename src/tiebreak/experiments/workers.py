"""Local processes as an executor: one that dies takes its own call with it and no other, and all die with their parent.

The pool of the standard library breaks as a whole when one of its processes is killed, and imports the caller's main
program again in each. Here each thread has a process of its own, which is told what to do through a pipe. The end of
the pipe is the end of the process, so that none is left behind, however the parent ends.
"""

import _thread
import json
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any, ParamSpec, TypeVar

from tiebreak.checks import whole

P = ParamSpec("P")
T = TypeVar("T")

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from tiebreak.experiments import workers as w; w.serve()"
_LENGTH = struct.Struct("<Q")
_OFTEN = 0.2  # seconds between two things that a call tells
#: As many processes as cores, and many threads in each, would be in each other's way.
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class WorkerDied(BrokenExecutor):
    """A process ended in the middle of a call. The executor has started another one, or will when it is needed."""


def cores() -> int:
    """The processor cores that this process may use."""
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )


class Processes(Executor):
    """So many processes on this machine, started when they are first needed.

    >>> with Processes(1) as executor:
    ...     executor.submit(divmod, 7, 2).result()
    (3, 1)
    """

    #: Told what a call in a process tells by :func:`tell`, in a thread of its own.
    hear: Callable[[Any], Any] | None = None

    def __init__(self, workers: int | None = None) -> None:
        self._threads = ThreadPoolExecutor(
            cores() if workers is None else whole("workers", workers)
        )
        self._own = threading.local()
        self._started: set[subprocess.Popen[bytes]] = set()
        self._changing = threading.Lock()
        self._ended = False

    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Call it in one of the processes; what it is and takes and gives is pickled."""
        return self._threads.submit(self._call, pickle.dumps((fn, args, kwargs)))

    def interrupt(self) -> None:
        """Ctrl-C for the calls that are being made: they may give what they have. Not by a signal, which would catch a
        process in the middle of its imports.
        """
        with self._changing:
            for process in self._started:
                with suppress(OSError):
                    _send(process.stdin, b"")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes: when they have done all, or, if all is cancelled or nothing is waited for, at once."""
        if wait and not cancel_futures:
            self._threads.shutdown()
        with self._changing:
            self._ended = True
            started = set(self._started)
        for process in started:
            process.kill()
        self._threads.shutdown(cancel_futures=True)  # their calls have just ended
        for process in started:
            self._end(process)

    def _call(self, call: bytes) -> Any:
        process = getattr(self._own, "process", None) or self._start()
        try:
            _send(process.stdin, call)
            while (answer := pickle.loads(_receive(process.stdout)))[0] is None:
                if self.hear is not None:
                    self.hear(answer[1])
            good, value, trace = answer
        except (EOFError, OSError):
            self._end(process)
            raise WorkerDied(
                f"process {process.pid} ended in the middle of it, with code {process.returncode}"
            ) from None
        if not good:
            value.add_note(f"In another process:\n{trace}")
            raise value
        return value

    def _start(self) -> subprocess.Popen[bytes]:
        path = json.dumps([folder or os.getcwd() for folder in sys.path])
        group: dict[str, Any] = (
            {} if os.name == "nt" else {"process_group": 0}
        )  # Ctrl-C is for the parent alone
        with self._changing:
            if self._ended:
                raise WorkerDied("the executor was shut down")
            process = subprocess.Popen(
                [sys.executable, "-c", _START, path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | dict.fromkeys(_THREADS, "1"),
                **group,
            )
            self._started.add(process)
        self._own.process = process
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._own.process = None
        process.kill()
        with self._changing:
            self._started.discard(process)
        with suppress(BrokenPipeError), process:  # closes the pipes and waits
            pass


def tell(what: Any, at_once: bool = False) -> None:
    """Send something to the executor's `hear` while a call goes on, not too often unless it is to be sent `at_once`;
    nothing outside of its processes.
    """
    global _told
    if _answers is not None and (at_once or time.monotonic() - _told > _OFTEN):
        _told = time.monotonic()
        _send(_answers, pickle.dumps((None, what, "")))


_answers: IO[bytes] | None = None  # where answers go, in one of the processes
_told = -_OFTEN


def serve() -> None:
    """Be such a process: calls come from standard input, answers go to standard output, what a call prints to error."""
    global _answers
    calls = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    _answers = answers
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                call = _receive(calls)
                waiting.put(call) if call else _thread.interrupt_main()
        finally:
            os._exit(
                0
            )  # the parent has ended or wants no more of this, be it in the middle of a call

    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # even if the parent is deaf to it
    with suppress(KeyboardInterrupt), answers:
        threading.Thread(target=listen, daemon=True).start()
        while True:
            _send(answers, _answer(waiting.get()))


def _answer(call: bytes) -> bytes:
    try:
        function, args, kwargs = pickle.loads(call)
        return pickle.dumps((True, function(*args, **kwargs), ""))
    except BaseException as error:
        return pickle.dumps((False, _sendable(error), traceback.format_exc()))


def _sendable(error: BaseException) -> BaseException:
    """The error, or one that can be sent in its stead."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _send(pipe: IO[bytes] | None, content: bytes) -> None:
    assert pipe is not None
    pipe.write(_LENGTH.pack(len(content)) + content)
    pipe.flush()


def _receive(pipe: IO[bytes] | None) -> bytes:
    assert pipe is not None

    def exactly(size: int) -> bytes:
        content = pipe.read(size)
        if len(content) < size:
            raise EOFError
        return content

    return exactly(_LENGTH.unpack(exactly(_LENGTH.size))[0])
