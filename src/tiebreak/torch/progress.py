"""How a training run goes, in one line: ``opt.register_step_post_hook(Progress())``."""

import math
from typing import IO

from tiebreak.checks import whole
from tiebreak.decision import residuals
from tiebreak.live import Line
from tiebreak.torch.logs import Row, StepLog
from tiebreak.torch.step_info import PRODUCTS


class Progress(StepLog):
    """A line on standard error: steps, λ, the excess in tolerances, both residuals as they fell, and the time left.

    In a terminal it is written again and again; elsewhere a plain line comes every two seconds, so that a log file can
    be read. Nothing waits for the device: its numbers are shown when they have come. The excess is averaged over recent
    steps; the last iterate may differ where the learning rate does not fall.

    Parameters
    ----------
    steps : int, optional
        Of the whole run, for the share that is done and the time left.
    every : int
        Steps 0, `every`, 2·`every`, … are looked at, the last of `steps`, and the last before the end.
    name : str
        What the line ends with.
    quiet : bool
        Write nothing: for all ranks but one.

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
        total = None if steps is None else whole("steps", steps)
        whole("every", every)  # before there is a thread
        line = Line(stream, quiet).__enter__()
        skipped = 0

        def write(k: int, row: Row) -> None:
            nonlocal skipped
            if row["skipped"]:
                skipped += 1
                return
            found = {
                key: math.nan if row[key] is None else float(row[key]) for key in _SHOWN
            }
            excess = found["excess"]
            over = total is not None and k + 1 > total
            words = [
                f"step {k + 1:,}"
                + (f" of {total:,}" if total else "")
                + " that were announced" * over
            ]
            if math.isfinite(excess):
                words.append(
                    f"excess {excess:.2f} tolerances{' (outside)' if excess > 1 else ''}"
                )
            words += [f"{skipped:,} skipped"] * bool(skipped)
            direction = residuals(*(found[name] for name in PRODUCTS))[0]
            line.tell(
                (k + 1) / total if total and not over else math.nan,
                name,
                words="  ".join(words),
                numbers={
                    "λ": found["multiplier"],
                    "f": found["upper_loss"],
                    "g": found["lower_loss"],
                },
                curves={"‖d‖²": direction, "‖∇g‖²": found["gg"]},
            )
            if (
                k + 1 == total
            ):  # the line ends here: what the script prints next has one of its own
                line.close()

        super().__init__(every, write, line.close, total, newest=True)


_SHOWN = (*PRODUCTS, "upper_loss", "lower_loss", "excess")
