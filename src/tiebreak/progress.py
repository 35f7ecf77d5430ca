"""A run while it goes on, in one line: how far it is, what it has spent, both residuals as they fell, the time left.

In a terminal the line is written again and again. Anywhere else it is a plain line every two seconds, so that a log
file can be read. A thread writes it where a step takes longer than that: nothing is silent for more than two seconds.
"""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import IO, Any, NamedTuple, Protocol, Self

#: Longest silence in seconds.
SILENCE = 2.0
_OFTEN = 0.1  # seconds between two lines in a terminal
_BARS = "▁▂▃▄▅▆▇█"
_LENGTH = 16  # values of a sparkline
_MANY = 10**5  # from here on, counts are rounded
_WIDE = 120  # columns, for long sparklines
_SOON = 0.02  # the share after which the time left is worth a guess


class Progress(NamedTuple):
    """What a progress function is told, between blocks of steps.

    The last three are means over the runs at the newest recorded step, or at the newest iterate, now and then, where
    nothing is recorded; NaN where the oracles cannot tell: λ, ‖d‖² and ‖∇g‖².

    Examples
    --------
    >>> import tiebreak
    >>> problem, told = tiebreak.problems.paper(), []
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, steps=100, seed=0, progress=told.append)
    >>> told[-1].steps, told[-1].fraction, told[-1].calls == result.calls
    (100, 1.0, True)
    """

    steps: int
    calls: int
    fraction: float
    multiplier: float = math.nan
    direction_squared: float = math.nan
    lower_gradient_squared: float = math.nan

    def shown(self) -> dict[str, Any]:
        """What :meth:`Line.tell` takes."""
        curves = {"‖d‖²": self.direction_squared, "‖∇g‖²": self.lower_gradient_squared}
        words = f"{count(self.calls)} calls"
        return {
            "steps": self.steps,
            "words": words,
            "numbers": {"λ": self.multiplier},
            "curves": curves,
        }


class News(Protocol):
    """What a solver or a training tells of itself."""

    def shown(self) -> dict[str, Any]:
        """What :meth:`Line.tell` takes."""
        ...


class Share(float):
    """A share of some work, with what was told when it got there, if something was."""

    now: News | None

    def __new__(cls, share: float, now: News | None = None) -> Self:
        """The share of :attr:`now`, or another one."""
        instance = super().__new__(cls, share)
        instance.now = now
        return instance

    @classmethod
    def of(cls, share: float, part: float) -> Self:
        """A share of the whole, with what was told when this `part` was done.

        >>> Share.of(0.75, Share(0.5, Progress(1, 2, 0.5))).now.calls
        2
        """
        return cls(share, getattr(part, "now", None))


def sparkline(values: Any, length: int = _LENGTH) -> str:
    """The last values, on a logarithmic scale where all are positive.

    >>> sparkline([1, 10, 100, 1000])
    '▁▃▆█'
    """
    latest = [float(v) for v in values][-length:]
    finite = [v for v in latest if math.isfinite(v)]
    scale: Callable[[float], float] = math.log if finite and min(finite) > 0 else float
    if finite:
        low, high = (scale(side(finite)) for side in (min, max))
    else:
        low, high = (0.0, 0.0)
    width = (high - low) or 1.0
    return "".join(
        _BARS[round((scale(v) - low) / width * (len(_BARS) - 1))]
        if math.isfinite(v)
        else " "
        for v in latest
    )


def clock(seconds: float) -> str:
    """Seconds as hours, minutes and seconds.

    >>> clock(75), clock(3675.2)
    ('1:15', '1:01:15')
    """
    minutes, remainder = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{remainder:02}"
    return f"{minutes}:{remainder:02}"


class Line:
    """The line. Tell it of shares and numbers, as often as you like; it is written no more often than can be read.

    Parameters
    ----------
    stream : text stream, optional
        Standard error if not given.
    quiet : bool
        Write nothing at all.
    name : str
        What is going on before anything is told: written if that takes longer than may be silent.

    Examples
    --------
    >>> import io
    >>> stream = io.StringIO()
    >>> with Line(stream) as line:
    ...     line.tell(0.5, "SDBGD", steps=10, curves={"‖∇g‖²": 0.25})
    >>> print(stream.getvalue().replace("  in 0:00", ""), end="")
     50 %  step 10  ‖∇g‖² ▁ 0.25  SDBGD
    """

    def __init__(
        self, stream: IO[str] | None = None, quiet: bool = False, name: str = ""
    ) -> None:
        if stream is None:
            self.stream = sys.stderr
        else:
            self.stream = stream
        self.quiet = quiet
        self.terminal = bool(getattr(self.stream, "isatty", lambda: False)())
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._began = self._stage = time.monotonic()
        self._share = math.nan
        self._first = math.nan
        self._fresh = False
        self._name = name
        self._words = list[str]()
        self._curves: dict[
            str, dict[str, deque[float]]
        ] = {}  # by name: several may be going on
        self._written = -math.inf
        self._width = 0
        self._some = False
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        if not self.quiet:
            self._written = time.monotonic()
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Write the newest line once more, where it was not, and end it."""
        if self.quiet:
            return
        open_yet = not self._ended.is_set()
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            if self._fresh or (open_yet and self.terminal and self._width):
                self._write(last=True)

    def tell(
        self,
        share: float = math.nan,
        name: str = "",
        *,
        steps: int | None = None,
        words: str = "",
        curves: Mapping[str, float] | None = None,
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        """What is newest: the share of the work that is done, of what, and numbers; those of `curves` as they went."""
        if self.quiet:
            return
        with self._lock:
            now = time.monotonic()
            if not share >= self._share:
                # The share fell, so a new stage began: estimate the time left from here.
                self._stage = now
                self._first = share
            self._share = share
            self._name = name
            self._fresh = True
            self._words = []
            if steps is not None:
                self._words.append(f"step {steps:,}")
            if words:
                self._words.append(words)
            for key, value in (numbers or {}).items():
                if math.isfinite(value):
                    self._words.append(f"{key} {_short(value)}")
            for key, value in (curves or {}).items():
                if math.isfinite(value):
                    series = self._curves.setdefault(name, {})
                    series.setdefault(key, deque(maxlen=_LENGTH)).append(value)
            if now - self._written >= (_OFTEN if self.terminal else SILENCE):
                self._write()

    def rename(self, name: str) -> None:
        """What is going on now, where nothing else is known: no news of its own, written if it takes long."""
        with self._lock:
            self._name = name

    def _tick(self) -> None:
        """Write what is known, where nobody has told anything new for a while."""
        while not self._ended.wait(SILENCE / 4):
            with self._lock:
                # The first line comes sooner: the program needed time to start.
                if self.terminal or not self._some:
                    patience = 0.5
                else:
                    patience = 0.75
                if time.monotonic() - self._written >= SILENCE * patience:
                    self._write()

    def _write(self, last: bool = False) -> None:
        self._written = time.monotonic()
        self._fresh = False
        self._some = True
        text = self._text()
        try:
            if not self.terminal:
                self.stream.write(f"{text}\n")
            else:
                text = text[: max(get_terminal_size().columns - 1, 20)]
                self.stream.write(f"\r{text:<{self._width}}" + "\n" * last)
                self._width = len(text)
            self.stream.flush()
        except (
            OSError,
            ValueError,
        ):  # a closed stream ends the line, not the run
            self._ended.set()

    def _text(self) -> str:
        spent = time.monotonic() - self._began
        measured = math.isfinite(self._share)
        narrow = self.terminal and get_terminal_size().columns <= _WIDE
        remaining = self._left()
        parts = []
        if measured:
            parts.append(f"{math.floor(100 * min(self._share, 1.0)):3} %")
        if remaining is None or not narrow:
            parts.append(f"in {clock(spent)}")
        if remaining is not None:
            parts.append(f"{clock(remaining)} left")
        parts += self._words
        curves = self._curves.get(self._name, {})
        if narrow:
            length = _LENGTH // 3
        else:
            length = _LENGTH
        for key, values in curves.items():
            parts.append(f"{key} {sparkline(values, length)} {_short(values[-1])}")
        if self._name:
            parts.append(self._name)
        return (" " if narrow else "  ").join(parts)

    def _left(self) -> float | None:
        """Seconds, if the rest is as fast as what was made since the stage began."""
        progress = self._share - (self._first if math.isfinite(self._first) else 0.0)
        if not progress > _SOON or self._share >= 1:
            return None
        return (time.monotonic() - self._stage) / progress * (1 - self._share)


def count(number: int) -> str:
    """A count of calls or evaluations: each digit, or a few letters where it is large.

    >>> count(8607), count(113000)
    ('8,607', '1.1e5')
    """
    if number < _MANY:
        return f"{number:,}"
    return _short(number)


def _short(value: float) -> str:
    """A number in few letters.

    >>> [_short(value) for value in (0.25, 8607.2, 9999.9, 113000.0, 7.8e10, 0.0001)]
    ['0.25', '8607', '10000', '1.1e5', '7.8e10', '1.0e-4']
    """
    if value == 0 or 0.01 <= abs(value) < 1e4:
        if abs(value) < 999.5:
            return f"{value:.3g}"
        return f"{value:.0f}"
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


@contextmanager
def progress_line() -> Iterator[Callable[[Progress], None]]:
    """A line on standard error that is written again as the run goes on, fed by :class:`Progress`."""
    with Line() as line:
        yield lambda now: show(line, now.fraction, "", now)


def show(line: Line, share: float, name: str, now: News | None) -> None:
    """Tell a line what a solver or a training told."""
    line.tell(share, name, **({} if now is None else now.shown()))
