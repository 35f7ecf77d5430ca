"""Hooks that report each step: ``opt.register_step_post_hook(CSVLog("log.csv"))``."""

import csv
import json
import math
import time
import weakref
from collections import deque
from pathlib import Path
from typing import IO, Any, Self

import torch
from torch import Tensor
from torch.optim import Optimizer

from tiebreak.checks import whole
from tiebreak.decision import residuals
from tiebreak.files import FilePath, atomic
from tiebreak.progress import Line
from tiebreak.provenance import stamp
from tiebreak.torch.backward import single_loss
from tiebreak.torch.devices import HostCopy
from tiebreak.torch.optimizer import DynamicBarrier
from tiebreak.torch.step_info import PRODUCTS, Step

#: The numbers of a step by the names of the fields of `Step`; None where the step has no number.
Row = dict[str, float | None]

COLUMNS = ("step", *Step._fields, "seconds")


class StepLog:
    """Writes every `every`-th step and each skipped step.

    The hook does not wait for the device: its numbers are written at a later step.
    """

    def __init__(self, every: int, writer: "_Writer") -> None:
        self.every = every
        self._writer = writer
        # Most users register the hook and never close the log.
        self._finalizer = weakref.finalize(self, writer.close)

    def __call__(
        self, optimizer: Optimizer, args: object = (), kwargs: object = None
    ) -> None:
        """Torch calls the hook after each step."""
        seconds = time.monotonic()
        if not isinstance(optimizer, DynamicBarrier):
            raise TypeError(
                f"{type(self).__name__} is for DynamicBarrier and its kin; {type(optimizer).__name__} has no multiplier"
            )
        info = optimizer.last
        if info is None or not self._finalizer.alive:
            return
        step = optimizer.count - 1
        is_due = step % self.every == 0 or step + 1 == self._writer.steps
        self._writer.enqueue(step, seconds, info, is_due)
        self._writer.flush()
        if self._writer.needs_settings:
            self._writer.describe(repr(optimizer))

    def close(self) -> None:
        """Write the pending steps and end the log; later steps are not written."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Writer:
    """Writes the rows of a log in order, as soon as the device has delivered their numbers.

    Attributes
    ----------
    steps : int or None
        The number of steps of the run, whose last step is always written.
    writes_newest : bool
        Whether to write the newest step at the end of the log.
    needs_settings : bool
        Whether to record the settings of the optimizer.
    """

    steps: int | None = None
    writes_newest = False
    needs_settings = False

    def __init__(self) -> None:
        self._newest: tuple[int, float, Step] | None = None  # None if due
        self._pending = deque[tuple[int, float, list[str], HostCopy]]()

    def write(self, step: int, seconds: float, row: Row) -> None:
        """Write the row of a step that ended at this reading of the monotonic clock."""

    def describe(self, settings: str) -> None:
        """Record the settings of the optimizer after its first step."""

    def end(self) -> None:
        """Close the output."""

    def enqueue(self, step: int, seconds: float, info: Step, is_due: bool) -> None:
        """Start to copy a step to the host; of a step that is not due only `skipped`."""
        if is_due:
            self._newest = None
        else:
            self._newest = (step, seconds, info)
        if is_due:
            fields = info._asdict()
        else:
            fields = {"skipped": info.skipped}
        tensors = {name: value for name, value in fields.items() if value is not None}
        values = torch.cat(
            [v.reshape(1).to(info.multiplier.device) for v in tensors.values()]
        )
        self._pending.append((step, seconds, list(tensors), HostCopy(values)))

    def flush(self, wait: bool = False) -> None:
        """Write the steps whose numbers have arrived, or wait for all of them."""
        pending = self._pending
        while pending and (wait or pending[0][-1].is_ready):
            step, seconds, names, copy = pending.popleft()
            numbers = dict(zip(names, copy.read(), strict=True))
            is_due = len(names) > 1
            if numbers["skipped"]:
                numbers = {"skipped": 1}  # the row has no further number
            elif is_due:
                numbers["skipped"] = 0
            else:
                continue
            self.write(step, seconds, dict.fromkeys(Step._fields) | numbers)

    def close(self) -> None:
        """Write all pending steps and close the output."""
        try:
            if self.writes_newest and self._newest and not self._newest[-1].skipped:
                self.enqueue(*self._newest, is_due=True)
            self.flush(wait=True)
        finally:
            self.end()


class CSVLog(StepLog):
    """Writes one line per step: its number, the fields of :class:`Step`, and the seconds since the log began.

    Each complete line is handed to the operating system at once. A killed process loses the last line, or the last two
    if the numbers come from a device, which delivers them one step later. The cell of a loss that was not given is
    empty. The line of a skipped step has only ``skipped`` and the seconds. The seconds are those of the host when the
    step was given to the device. The file ``log.csv.json`` beside the log has the optimizer's settings and versions.

    Parameters
    ----------
    path : str or path
        An existing log is continued: an incomplete last line is cut off, and the seconds go on from the last line.
        Steps that are repeated after a resume are written again. If the step numbers go back, also in a new run,
        reports and references ignore the earlier lines from the repeated number on.
    every : int
        Steps 0, `every`, 2·`every`, … and all skipped steps are written. No step waits for the device.

    Examples
    --------
    >>> import tempfile, torch, tiebreak
    >>> path = Path(tempfile.mkdtemp()) / "log.csv"
    >>> x = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    >>> method = tiebreak.methods.sdbgd.replace(barrier=1.0, regularizer=0.0)
    >>> opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), method=method)
    >>> with CSVLog(path) as log:
    ...     handle = opt.register_step_post_hook(log)
    ...     info = opt.step(upper=lambda: x.sum(), lower=lambda: x.square().sum())
    >>> header, row = path.read_text().split()
    >>> print(header)
    step,upper_loss,lower_loss,reference,excess,ratio,multiplier,fg,gg,ff,skipped,seconds
    >>> print(row.rpartition(",")[0])
    0,2.0,4.0,,,,0.75,4.0,16.0,1.0,0
    """

    def __init__(self, path: FilePath, every: int = 1) -> None:
        self.path = Path(path)
        super().__init__(whole("every", every), _CSVWriter(self.path))

    def add(self, step: int, **values: Tensor | float | None) -> None:
        """Write a line in an ordinary training loop: ``log.add(k, lower_loss=loss)``.

        A log of lower-only training is a reference, ``DynamicBarrier(…, reference="fit.csv")``.
        """
        step = whole("step", step, 0)
        if not self._finalizer.alive:
            raise ValueError(f"{self.path} is closed: add its lines before")
        row: Row = dict.fromkeys(Step._fields)
        for name, value in values.items():
            if name not in row:
                raise ValueError(
                    f"{name}={value!r} must be one of {', '.join(Step._fields)}"
                )
            if value is not None:
                number = single_loss(name, value)
                row[name] = float(
                    number.item() if isinstance(number, Tensor) else number
                )
        self._writer.write(step, time.monotonic(), row)


class _CSVWriter(_Writer):
    def __init__(self, path: Path) -> None:
        super().__init__()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._start = time.monotonic() - _last_seconds(path)
        self._path = path
        # Line buffering hands each complete line to the operating system.
        self._file = path.open("a", encoding="utf-8", newline="", buffering=1)
        self._has_header = path.stat().st_size > 0
        self._rows = csv.writer(self._file, lineterminator="\n")
        self.needs_settings = True

    def write(self, step: int, seconds: float, row: Row) -> None:
        if not self._has_header:
            self._rows.writerow(COLUMNS)
            self._has_header = True
        self._rows.writerow([step, *row.values(), f"{seconds - self._start:.3f}"])

    def describe(self, settings: str) -> None:
        self.needs_settings = False
        description = {"optimizer": settings, **stamp()}
        description["versions"]["torch"] = torch.__version__
        with atomic(self._path.with_name(f"{self._path.name}.json"), "w") as file:
            json.dump(description, file, indent=2)

    def end(self) -> None:
        self._file.close()


def _last_seconds(path: Path) -> float:
    """Cut off an incomplete last line of a log and return the seconds of the line before."""
    if not path.exists() or not path.stat().st_size:
        return 0.0
    with path.open("rb+") as file:
        header = file.readline()
        if header != f"{','.join(COLUMNS)}\n".encode():
            raise ValueError(
                f"path={str(path)!r} exists and is no log of this kind, whose columns are {', '.join(COLUMNS)}; give "
                "another name, or move it"
            )
        last = b""
        end = file.tell()
        for line in file:
            if line.endswith(b"\n"):
                last = line
                end += len(line)
        file.truncate(end)
    try:
        return max(0.0, float(last.rpartition(b",")[2]))
    except ValueError:  # no line, or a user has changed the line
        return 0.0


class Log(StepLog):
    """Writes each step to the user's logger: ``opt.register_step_post_hook(Log(wandb.init()))``.

    The names are ``tiebreak/multiplier``, ``tiebreak/gg``, … for the fields of :class:`Step`. Missing numbers are left
    out: a loss that was not given, and all numbers of a skipped step.

    Parameters
    ----------
    logger : object
        A run of wandb, the module ``trackio``, a SummaryWriter, the module ``mlflow`` or a Lightning logger: anything
        with ``log(dict)``, ``add_scalar(tag, value, step)`` or ``log_metrics(dict, step=…)``. The user closes the
        logger.
    every : int
        Steps 0, `every`, 2·`every`, … and all skipped steps are written. No step waits for the device.
    prefix : str
        Precedes every name.
    numbered : bool
        Whether ``log`` receives ``step=``, the optimizer's count. wandb drops numbers whose step is smaller than the
        step of earlier numbers, and numbers from a GPU arrive one step late. If your loop logs each step with your own
        number, say False and use ``tiebreak/step`` as the axis, which is always among the numbers.

    Examples
    --------
    >>> import torch, tiebreak
    >>> from tiebreak.torch import DynamicBarrier
    >>> class Run:
    ...     def log(self, data, step=None):
    ...         print(step, data["tiebreak/multiplier"], data["tiebreak/lower_loss"])
    >>> x = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    >>> method = tiebreak.methods.sdbgd.replace(barrier=1.0, regularizer=0.0)
    >>> opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), method=method)
    >>> handle = opt.register_step_post_hook(Log(Run()))
    >>> info = opt.step(upper=lambda: x.sum(), lower=lambda: x.square().sum())
    0 0.75 4.0
    """

    def __init__(
        self,
        logger: Any,
        every: int = 10,
        prefix: str = "tiebreak/",
        *,
        numbered: bool = True,
    ) -> None:
        writer = _LoggerWriter(logger, prefix, numbered)
        super().__init__(whole("every", every), writer)
        self.logger = logger

    def close(self) -> None:
        """End the log and flush the logger if it has `flush`; the logger stays open."""
        super().close()
        flush = getattr(self.logger, "flush", None)
        if callable(flush):
            flush()


class _LoggerWriter(_Writer):
    def __init__(self, logger: Any, prefix: str, numbered: bool) -> None:
        super().__init__()
        if not isinstance(prefix, str):
            raise TypeError(f"prefix={prefix!r} must be a string")
        methods = ("add_scalar", "log_metrics", "log")
        if not any(callable(getattr(logger, name, None)) for name in methods):
            raise TypeError(
                f"logger={logger!r} must have log(dict) (wandb, trackio), add_scalar(tag, value, step) (TensorBoard) or "
                "log_metrics(dict, step=…) (MLflow, Lightning's loggers)"
            )
        self._logger = logger
        self._prefix = prefix
        self._numbered = numbered

    def write(self, step: int, seconds: float, row: Row) -> None:
        logger = self._logger
        numbers = {}
        for name, value in row.items():
            if value is not None:
                numbers[f"{self._prefix}{name}"] = float(value)
        if hasattr(logger, "add_scalar"):
            for name, number in numbers.items():
                logger.add_scalar(name, number, step)
        elif hasattr(logger, "log_metrics"):
            logger.log_metrics(numbers, step=step)
        else:
            numbers[f"{self._prefix}step"] = step
            if self._numbered:
                options = {"step": step}
            else:
                options = {}
            logger.log(numbers, **options)


class Progress(StepLog):
    """Shows one line on standard error: steps, λ, the excess in tolerances, both residuals and the time left.

    A terminal shows the newest line only. Otherwise a plain line follows every two seconds, so that a log file stays
    readable. The hook does not wait for the device and shows the numbers when they arrive. The excess is averaged over
    recent steps; the last iterate may differ if the learning rate does not fall.

    Parameters
    ----------
    steps : int, optional
        The steps of the run, for the completed share and the time left.
    every : int
        Steps 0, `every`, 2·`every`, … are shown, step number `steps`, and the last step before the end.
    name : str
        Ends the line.
    quiet : bool
        Write nothing, for all ranks but one.

    Examples
    --------
    >>> import io, torch, tiebreak
    >>> from tiebreak.torch import DynamicBarrier
    >>> x, stream = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64)), io.StringIO()
    >>> method = tiebreak.methods.sdbgd.replace(barrier=1.0, regularizer=0.0)
    >>> opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), method=method)
    >>> with Progress(steps=4, every=1, stream=stream) as shown:
    ...     handle = opt.register_step_post_hook(shown)
    ...     info = opt.step(upper=lambda: x.sum(), lower=lambda: x.square().sum())
    >>> print(stream.getvalue().strip().replace("  in 0:00", ""))
    25 %  step 1 of 4  λ 0.75  f 2  g 4  ‖d‖² ▁ 16  ‖∇g‖² ▁ 16
    """

    def __init__(
        self,
        steps: int | None = None,
        every: int = 10,
        name: str = "",
        *,
        quiet: bool = False,
        stream: IO[str] | None = None,
    ) -> None:
        if steps is not None:
            steps = whole("steps", steps)
        every = whole("every", every)
        line = Line(stream, quiet).__enter__()
        super().__init__(every, _LineWriter(line, steps, name))


class _LineWriter(_Writer):
    writes_newest = True

    def __init__(self, line: Line, steps: int | None, name: str) -> None:
        super().__init__()
        self._line = line
        self.steps = steps
        self._name = name
        self._skipped = 0

    def write(self, step: int, seconds: float, row: Row) -> None:
        if row["skipped"]:
            self._skipped += 1
            return
        numbers = {
            name: math.nan if value is None else value for name, value in row.items()
        }
        share = math.nan
        words = f"step {step + 1:,}"
        if self.steps is not None:
            words += f" of {self.steps:,}"
            share = (step + 1) / self.steps
        if share > 1:
            words += " that were announced"
            share = math.nan
        excess = numbers["excess"]
        if math.isfinite(excess):
            words += f"  excess {excess:.2f} tolerances" + " (outside)" * (excess > 1)
        if self._skipped:
            words += f"  {self._skipped:,} skipped"
        multiplier, fg, gg, ff = (numbers[name] for name in PRODUCTS)
        direction_squared, _ = residuals(multiplier, fg, gg, ff)
        losses = {"f": numbers["upper_loss"], "g": numbers["lower_loss"]}
        self._line.tell(
            share,
            self._name,
            words=words,
            numbers={"λ": multiplier} | losses,
            curves={"‖d‖²": direction_squared, "‖∇g‖²": gg},
        )
        if share == 1:  # the next output of the script starts on a new line
            self.end()

    def end(self) -> None:
        self._line.close()
