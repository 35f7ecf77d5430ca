"""What every benchmark returns, and how it times: ratios in one run, never times of different runs."""

import statistics
import time
from dataclasses import dataclass, field


@dataclass
class Table:
    """A table of results; `report.py` writes it as Markdown and draws it.

    Parameters
    ----------
    name : str
        A slug: the file names of the picture.
    title : str
        One line, with what is measured and on what.
    columns : list of str
        Names, with units.
    rows : list of lists
        Strings, numbers, or None where there is nothing to say.
    notes : list of str
        What a reader must know to read the numbers.
    plot : dict, optional
        ``{"kind": "bars" | "lines", "x": column, "y": [columns], "log": "", "x", "y" or "xy"}``.
    """

    name: str
    title: str
    columns: list
    rows: list
    notes: list = field(default_factory=list)
    plot: dict | None = None


def side_by_side(functions, seconds=2.0, rounds=200, wait=lambda: None):
    """Median seconds of each function, taken in turns so that whatever disturbs the machine disturbs all alike.

    Parameters
    ----------
    functions : dict
        Name → function without arguments.
    seconds : float
        About how long each of them may take in total.
    rounds : int
        At most this many turns; at least three.
    wait : function
        Called before the clock is read: ``torch.cuda.synchronize`` on a GPU.
    """
    times = {name: [] for name in functions}
    for function in functions.values():  # warm: allocators, caches, compilers
        function()
        function()
    end = time.perf_counter() + seconds * len(functions)
    for turn in range(rounds):
        if turn >= 3 and time.perf_counter() > end:
            break
        for name, function in functions.items():
            wait()
            start = time.perf_counter()
            function()
            wait()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}
