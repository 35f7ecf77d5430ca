"""Hooks that write down what each step did: ``opt.register_step_post_hook(CSVLog("log.csv"))``."""

import csv
import json
import os
import time
import weakref
from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from tiebreak.checks import whole
from tiebreak.files import atomic
from tiebreak.provenance import stamp
from tiebreak.torch.host_copy import Later, on_host
from tiebreak.torch.losses import single
from tiebreak.torch.optimizer import DynamicBarrier
from tiebreak.torch.step_info import Step

Row: TypeAlias = dict[str, Any]  # what a step did, by the names of Step
_MOST = 64  # steps that a device may be behind
_COLUMNS = ("step", *Step._fields, "seconds")
_LONGEST = 100  # letters, for the last cell of a line


class _Late:
    """Steps whose numbers are still on their way from a device, in their order; written when they are there."""

    def __init__(self, write: Callable[[int, Row], None]) -> None:
        self._write = write
        self._steps: list[tuple[int, list[str], Later]] = []
        self.newest: tuple[int, Step] | None = (
            None  # one that was not to be looked at, unless it is the last
        )

    def add(self, k: int, given: dict[str, Tensor]) -> None:
        """A step: asked for now, in one piece."""
        self._steps.append(
            (
                k,
                list(given),
                Later(torch.cat([value.reshape(1) for value in given.values()])),
            )
        )

    def write(self, all_of_them: bool = False) -> None:
        """Write those that are there, or wait for all."""
        while self._steps and (
            all_of_them or len(self._steps) > _MOST or self._steps[0][2].there
        ):
            k, names, later = self._steps.pop(0)
            found: dict[str, Any] = dict(zip(names, later.read(), strict=True))
            found["skipped"] = bool(found["skipped"])
            if found["skipped"] or len(found) > 1:
                self._write(k, _row({"skipped": True} if found["skipped"] else found))
        if all_of_them and self.newest is not None:
            (k, step), self.newest = self.newest, None
            if not bool(step.skipped):
                self._write(
                    k,
                    _row(
                        {
                            n: v.tolist()
                            for n, v in step._asdict().items()
                            if v is not None
                        }
                    ),
                )


def _row(found: dict[str, Any]) -> Row:
    """What a step has, by name; None for what it has not."""
    return {name: found.get(name) for name in Step._fields}


def _finish(late: _Late, finish: Callable[[], None]) -> None:
    try:
        late.write(all_of_them=True)
    finally:
        finish()


class StepLog:
    """Looks at every `every`-th step, at each one skipped, and at the last where it is said how many `steps` there are.

    Nothing waits: a device's numbers come a step later. With `newest` the last step before the end is looked at, too.
    """

    def __init__(
        self,
        every: int,
        write: Callable[[int, Row], None],
        finish: Callable[[], None],
        steps: int | None = None,
        newest: bool = False,
    ) -> None:
        self.every, self._steps, self._newest = whole("every", every), steps, newest
        self._closed = False
        self._write, self._late = write, _Late(write)
        self._end = weakref.finalize(
            self, _finish, self._late, finish
        )  # a hook is forgotten rather than closed

    def __call__(
        self, optimizer: Optimizer, args: Any = (), kwargs: Any = None
    ) -> None:
        """What torch calls after a step."""
        if not isinstance(optimizer, DynamicBarrier):
            raise TypeError(
                f"{type(self).__name__} is for DynamicBarrier and its kin; {type(optimizer).__name__} has no multiplier"
            )
        if self._closed or optimizer.last is None:
            return
        k, last = optimizer.count - 1, optimizer.last
        self._late.write()
        wanted = k % self.every == 0 or k + 1 == self._steps
        self._late.newest = (k, last) if self._newest and not wanted else None
        if on_host(last.multiplier):
            skipped = bool(last.skipped)
            if wanted or skipped:  # a skipped step has no numbers of its own
                self._write(k, _row({"skipped": True} if skipped else optimizer.log()))
        else:
            given = {
                name: value
                for name, value in last._asdict().items()
                if value is not None
            }
            self._late.add(k, given if wanted else {"skipped": last.skipped})

    def close(self) -> None:
        """End the log, with what is still on its way; later steps are not written."""
        self._closed = True
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class CSVLog(StepLog):
    """A line per step: its number, what :class:`Step` has, by the same names, and the seconds since the log began.

    Each line goes to the system when it is complete: a process that is killed loses no more than the last, or the last
    two where the numbers come from a device: they are asked for at their step and written at the next. A loss that was
    not told is empty, and so is all but ``skipped`` and the seconds where a step was skipped. Seconds are those of the
    host when the step was given to the device. Beside the log, ``log.csv.json`` has the optimizer's settings and
    versions.

    Parameters
    ----------
    path : str or path
        A file that exists is continued: the header is not repeated, half a line at its end is cut off, seconds go on
        from the last line's. Steps that are made again after a resume are written again; where the numbers go back, in
        a new run too, what stood from there on does not count for reports and references.
    every : int
        Steps 0, `every`, 2·`every`, … are written, and each one that was skipped. None waits for the device.

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

    def __init__(self, path: str | os.PathLike[str], every: int = 1) -> None:
        whole("every", every)  # before there is a file
        self.path = Path(path)
        self._sheet = _Sheet(self.path)
        self._described = False
        super().__init__(every, self._sheet.write, self._sheet.file.close)

    def __call__(
        self, optimizer: Optimizer, args: Any = (), kwargs: Any = None
    ) -> None:
        """What torch calls after a step."""
        if not isinstance(optimizer, DynamicBarrier):
            self._sheet.leave()
        elif not self._closed:
            self._sheet.stamp(optimizer.count - 1)
        super().__call__(optimizer, args, kwargs)
        if (
            isinstance(optimizer, DynamicBarrier)
            and not self._closed
            and not self._described
        ):
            self._described = True
            _describe(self.path, optimizer)

    def add(self, step: int, **values: Any) -> None:
        """Write a line of your own, in an ordinary training loop: ``log.add(k, lower_loss=loss)``.

        A log of lower-only training is a reference, ``DynamicBarrier(…, reference="fit.csv")``.
        """
        unknown = sorted(set(values) - set(Step._fields))
        if unknown:
            raise ValueError(
                f"{unknown[0]}={values[unknown[0]]!r} must be one of {', '.join(Step._fields)}"
            )
        number: Any = step
        if isinstance(number, bool) or not isinstance(number, Integral) or number < 0:
            raise ValueError(f"step={step!r} must be a whole number ≥ 0")
        if self._closed:
            raise ValueError(f"{self.path} is closed: add its lines before")
        found = {
            name: None if value is None else single(name, value)
            for name, value in values.items()
        }
        numbers = {
            n: v.detach().item() if isinstance(v, Tensor) else v
            for n, v in found.items()
        }
        self._write(int(step), _row(numbers))


class _Sheet:
    """The file of a log: it outlives the log by what is still to be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        seconds = _continued(path)
        self._has_header = seconds is not None
        self._began = time.monotonic() - (seconds or 0.0)
        self._stamps: dict[int, float] = {}  # of steps that are not written yet
        self.file = path.open(
            "a", encoding="utf-8", newline="", buffering=1
        )  # 1: line by line
        self._writer = csv.writer(self.file, lineterminator="\n")

    def leave(self) -> None:
        """Nothing will be written: a file that has nothing in it goes."""
        self.file.close()
        if not self._has_header:
            self.path.unlink(missing_ok=True)

    def stamp(self, k: int) -> None:
        """Step k has been made now, whenever its numbers come."""
        self._stamps[k] = time.monotonic()

    def write(self, k: int, row: Row) -> None:
        """A line."""
        seconds = self._stamps.get(k, time.monotonic()) - self._began
        self._stamps = {
            step: at for step, at in self._stamps.items() if step > k
        }  # those between are not written
        if not self._has_header:
            self._writer.writerow(_COLUMNS)
            self._has_header = True
        numbers = [int(v) if isinstance(v, bool) else v for v in row.values()]
        self._writer.writerow([k, *numbers, f"{seconds:.3f}"])


def _describe(path: Path, optimizer: DynamicBarrier) -> None:
    """Say beside the log what the optimizer was told, for the report."""
    made = stamp()
    made["versions"] |= {"torch": torch.__version__}
    with atomic(path.with_name(f"{path.name}.json"), "w") as file:
        json.dump({"optimizer": repr(optimizer), **made}, file, indent=2)


def _continued(path: Path) -> float | None:
    """Cut off half a line that a crash left at the end of a log; return the last line's seconds, None without a log."""
    if not path.exists() or not path.stat().st_size:
        return None
    with path.open("rb+") as file:
        if (
            file.readline() != f"{','.join(_COLUMNS)}\n".encode()
        ):  # somebody else's file: cut nothing off
            raise ValueError(
                f"path={str(path)!r} exists and is no log of this kind, whose columns are {', '.join(_COLUMNS)}; give "
                "another name, or move it"
            )
        size = end = file.seek(0, os.SEEK_END)
        while True:  # from the end, a block at a time: a long log is not read whole
            begin = max(0, end - 65536)
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                break
            end = begin
        whole_lines = begin + newline
        if whole_lines + 1 < size:
            file.truncate(whole_lines + 1)
        file.seek(max(0, whole_lines - _LONGEST))
        last = file.read(min(_LONGEST, whole_lines))
    try:
        return max(0.0, float(last.rpartition(b",")[2]))
    except ValueError:  # the header, or somebody has changed it
        return 0.0
