"""Hooks that write down what each step did: ``opt.register_step_post_hook(CSVLog("log.csv"))``."""

import csv
import os
import weakref
from abc import ABC, abstractmethod
from numbers import Integral
from pathlib import Path
from typing import Any, Self

from torch import Tensor
from torch.optim import Optimizer

from tiebreak.checks import whole
from tiebreak.torch.losses import single
from tiebreak.torch.optimizer import DynamicBarrier, Step

__all__ = ["CSVLog", "TensorBoardLog"]

_PER_AREA = ("multiplier", "fg", "gg", "ff", "direction_squared", "stationarity_squared")


class _Log(ABC):
    """Looks at every `every`-th step, and at each one skipped; other steps cost a comparison, and no wait."""

    def __init__(self, every: int) -> None:
        self.every = whole("every", every)
        self._closed = False

    def __call__(self, optimizer: Optimizer, args: Any = (), kwargs: Any = None) -> None:
        """What torch calls after a step."""
        if not isinstance(optimizer, DynamicBarrier):
            raise TypeError(
                f"{type(self).__name__} is for DynamicBarrier and its kin; {type(optimizer).__name__} has no multiplier"
            )
        if self._closed or optimizer.last is None:
            return
        k, known = optimizer.count - 1, optimizer.last.skipped.device.type == "cpu"
        # A skipped step is of interest whenever it is known; where only the device knows, asking would wait.
        if k % self.every and not (known and bool(optimizer.last.skipped)):
            return
        skipped = bool(optimizer.last.skipped)
        # A skipped step has no numbers of its own.
        found: dict[str, Any] = {"skipped": True} if skipped else optimizer.log()
        number = None if optimizer.scope.whole else optimizer.scope.count(optimizer.param_groups)
        row: dict[tuple[str, int | None], Any] = {}
        for name in Step._fields:
            value = found.get(name)
            if number is None or name not in _PER_AREA:
                row[name, None] = value
            else:
                row |= {(name, i): None if value is None else value[i] for i in range(number)}
        self._write(k, row)

    @abstractmethod
    def _write(self, k: int, row: dict[tuple[str, int | None], Any]) -> None:
        """One step, by name and region."""

    def close(self) -> None:
        """End the log; later steps are not written."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class CSVLog(_Log):
    """A line per step: its number, then what :class:`Step` has, by the same names.

    Each line goes to the system when it is complete: a process that is killed loses no more than the last. With
    ``scope="group"`` or ``"tensor"`` there is a column per region, ``multiplier[0]``, ``multiplier[1]``, …. A loss that
    was not told is empty, and so is all but ``skipped`` where a step was skipped.

    Parameters
    ----------
    path : str or path
        A file that exists is continued: the header is not repeated, half a line at its end is cut off. Steps that are
        made again after a resume are written again; the last line of a step counts.
    every : int
        Steps 0, `every`, 2·`every`, … are written, and each one that was skipped. Only these wait for the device.

    Examples
    --------
    >>> import tempfile, torch
    >>> path = Path(tempfile.mkdtemp()) / "log.csv"
    >>> x = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    >>> opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), barrier=1.0, regularizer=0.0)
    >>> with CSVLog(path) as log:
    ...     handle = opt.register_step_post_hook(log)
    ...     info = opt.step(upper=lambda: x.sum(), lower=lambda: x.square().sum())
    >>> header, row = path.read_text().split()
    >>> print(header[:97])
    step,multiplier,fg,gg,ff,direction_squared,stationarity_squared,upper_loss,lower_loss,skipped,ave
    >>> print(row)
    0,0.75,4.0,16.0,1.0,16.0,1.0,2.0,4.0,0,,,,,
    """

    def __init__(self, path: str | os.PathLike[str], every: int = 1) -> None:
        super().__init__(every)
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._columns = _header(self.path)
        self._file = self.path.open("a", encoding="utf-8", newline="", buffering=1)  # 1: line by line
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._end = weakref.finalize(self, self._file.close)  # a hook is forgotten rather than closed: no complaint

    def _write(self, k: int, row: dict[tuple[str, int | None], Any]) -> None:
        columns = ["step", *(name if i is None else f"{name}[{i}]" for name, i in row)]
        if self._columns is None:
            self._writer.writerow(columns)
            self._columns = columns
        elif columns != self._columns:
            raise ValueError(
                f"{self.path} has the columns {', '.join(self._columns)}; this optimizer needs {', '.join(columns)}: "
                "give it another file"
            )
        self._writer.writerow([k, *(int(v) if isinstance(v, bool) else v for v in row.values())])

    def add(self, step: int, **values: Any) -> None:
        """Write a line of your own, in an ordinary training loop: ``log.add(k, lower_loss=loss)``.

        A log of lower-only training is a reference, ``DynamicBarrier(…, reference="fit.csv")``.
        """
        unknown = sorted(set(values) - set(Step._fields))
        if unknown:
            raise ValueError(f"{unknown[0]}={values[unknown[0]]!r} must be one of {', '.join(Step._fields)}")
        number: Any = step
        if isinstance(number, bool) or not isinstance(number, Integral) or number < 0:
            raise ValueError(f"step={step!r} must be a whole number ≥ 0")
        if self._closed:
            raise ValueError(f"{self.path} is closed: add its lines before")
        found = {name: None if value is None else single(name, value) for name, value in values.items()}
        numbers = {n: v.detach().item() if isinstance(v, Tensor) else v for n, v in found.items()}
        self._write(int(step), {(name, None): numbers.get(name) for name in Step._fields})

    def close(self) -> None:
        """End the log, and close the file."""
        super().close()
        self._end()


class TensorBoardLog(_Log):
    """Scalars ``tiebreak/multiplier``, ``tiebreak/gg``, …, with ``/0``, ``/1``, … where there are several regions.

    Parameters
    ----------
    writer : torch.utils.tensorboard.SummaryWriter
        Or anything with ``add_scalar(tag, value, step)``; it stays yours to close.
    every : int
        Steps 0, `every`, 2·`every`, … are written, and each one that was skipped. Only these wait for the device.
    prefix : str
        Before every tag.

    Examples
    --------
    >>> import torch
    >>> class Writer:
    ...     def add_scalar(self, tag, value, step):
    ...         print(step, tag, value)
    >>> x = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    >>> opt = DynamicBarrier(torch.optim.SGD([x], lr=0.0), barrier=1.0, regularizer=0.0)
    >>> handle = opt.register_step_post_hook(TensorBoardLog(Writer(), prefix=""))
    >>> info = opt.step(upper=lambda: x.sum(), lower=lambda: x.square().sum())
    0 multiplier 0.75
    0 fg 4.0
    0 gg 16.0
    0 ff 1.0
    0 direction_squared 16.0
    0 stationarity_squared 1.0
    0 upper_loss 2.0
    0 lower_loss 4.0
    0 skipped 0.0
    """

    def __init__(self, writer: Any, every: int = 10, prefix: str = "tiebreak/") -> None:
        super().__init__(every)
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(f"writer={writer!r} must have add_scalar(tag, value, step), as a SummaryWriter has")
        if not isinstance(prefix, str):
            raise TypeError(f"prefix={prefix!r} must be a string")
        self.writer, self.prefix = writer, prefix

    def _write(self, k: int, row: dict[tuple[str, int | None], Any]) -> None:
        for (name, i), value in row.items():
            if value is not None:
                self.writer.add_scalar(self.prefix + (name if i is None else f"{name}/{i}"), float(value), k)

    def close(self) -> None:
        """End the log; the writer is flushed, not closed."""
        super().close()
        if callable(flush := getattr(self.writer, "flush", None)):
            flush()


def _header(path: Path) -> list[str] | None:
    """The columns of a log that exists, after half a line at its end, left by a crash, was cut off."""
    if not path.exists() or not path.stat().st_size:
        return None
    with path.open("rb+") as file:
        first = file.readline()
        if not first.startswith(b"step,multiplier") or not first.endswith(b"\n"):  # not ours: cut nothing off
            raise ValueError(f"path={str(path)!r} exists and is no log of this kind; give another name, or move it")
        size = end = file.seek(0, os.SEEK_END)
        while True:  # from the end, a block at a time: a long log is not read whole
            begin = max(0, end - 65536)
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                break
            end = begin
        if begin + newline + 1 < size:
            file.truncate(begin + newline + 1)
    return next(csv.reader([first.decode("utf-8")]))
