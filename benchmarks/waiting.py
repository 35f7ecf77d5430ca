"""What a step adds to two backward passes and the base's step, and whether it waits: ``python -m benchmarks.waiting``.

Default options, with and without a tolerance. Each ratio is taken twice: with a wait after every step, so that the host
cannot run ahead of the device, and with one after every ten, as training has it. Then the same as CUDA graphs. The
first figure is the stricter one where the device is busy, and shows the host's work where it is not.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

from benchmarks import report, speed_peers, torch_peers
from benchmarks.table import Table
from benchmarks.training import Language, Perceptron, waiting, where

RUN = 10  # steps between two waits, as in training
GRAPH = 5
LR = 1e-3


class _Base:
    """A base optimizer, by name and options."""

    def __init__(self, kind, **options):
        self.kind, self.options = kind, options

    def __call__(self, parameters):
        return self.kind(parameters, lr=LR, **self.options)


BASES = {"SGD": _Base(torch.optim.SGD), "AdamW": _Base(torch.optim.AdamW)}
REFERENCE = "two backward passes + base"


def methods(base, graph=False):
    """Name → function of a model that returns ``step(upper, lower)``."""
    capturable = {"capturable": True} if graph and base == "AdamW" else {}
    kind = _Base(BASES[base].kind, **capturable)
    safe = (
        {"nonfinite": "skip"} if graph else {}
    )  # nobody can be told of an error by a replay

    def plain(**options):
        other = _Base(kind.kind, **kind.options, **options)
        return lambda model: speed_peers.two_backwards(model, other(model.parameters()))

    def ours(**options):
        def build(model):
            opt = speed_peers.DynamicBarrier(
                kind(model.parameters()), **safe, **options
            )
            return lambda upper, lower: opt.step(upper=upper, lower=lower)

        return build

    tolerance = {"tolerance": speed_peers.ALLOWED, "reference": speed_peers.GOAL}
    found = {REFERENCE: plain()}
    if base == "AdamW":
        found["the same, AdamW(fused=True)"] = plain(fused=True)
    found["ours: default, barrier"] = ours(method=torch_peers.METHOD)
    found["ours: default, tolerance"] = ours(**tolerance)
    if not graph:
        found["ours: nonfinite='ignore', barrier"] = ours(
            method=torch_peers.METHOD, nonfinite="ignore"
        )
        found["DBGD by hand"] = lambda model: speed_peers.by_hand(
            model, kind(model.parameters())
        )
    return found


def started(task, build):
    model = task.model()
    step = build(model)
    upper, lower = task.losses(model)
    return lambda: step(upper, lower)


def captured(step):
    """The whole step as a graph; with it stays what it reads: parameters, tables, numbers."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return lambda _held=step: graph.replay()


def in_turns(steps, seconds, length, wait, clock=time.perf_counter):
    """Per step, in turns: the median time, and that of the ratio to the first, from the same turn."""
    times, first = {name: [] for name in steps}, next(iter(steps))
    for step in steps.values():
        step()
        step()
    end = time.perf_counter() + seconds * len(steps)
    while len(times[first]) < 5 or (
        time.perf_counter() < end and len(times[first]) < 400
    ):
        for name, step in steps.items():
            wait()
            start = clock()
            for _ in range(length):
                step()
            wait()
            times[name].append((clock() - start) / length)
    ratios = {
        n: statistics.median(a / b for a, b in zip(t, times[first], strict=True))
        for n, t in times.items()
    }
    return {name: (statistics.median(t), ratios[name] - 1) for name, t in times.items()}


def same_by_hand(model, optimizer):
    """Two backward passes, three inner products, the direction in ∇f's memory, the base's step: what ours makes."""
    ps = list(model.parameters())

    def step(upper, lower):
        b = torch.autograd.grad(lower(), ps)
        a = torch.autograd.grad(upper(), ps)
        fg = gg = ff = 0.0
        for u, v in zip(a, b, strict=True):
            x, y = u.view(-1), v.view(-1)
            fg += torch.dot(x, y).item()
            gg += torch.dot(y, y).item()
            ff += torch.dot(x, x).item()
        multiplier = max(0.0, (gg - fg) / (gg + 1e-12))
        for p, u, v in zip(ps, a, b, strict=True):
            p.grad = u.mul_(1 / (1 + multiplier)).add_(
                v, alpha=multiplier / (1 + multiplier)
            )
        optimizer.step()

    return step


def measure_cpu(quick=False, seconds=1.5):
    """One thread, and its own time: other programs do not count."""
    before, rows = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        for task in (Perceptron("MLP 1 M"), Perceptron("check")):
            for base, make in BASES.items():
                chosen = {
                    "the same by hand": lambda model, make=make: same_by_hand(
                        model, make(model.parameters())
                    )
                }
                chosen |= {
                    n: build
                    for n, build in methods(base).items()
                    if "fused" not in n and "DBGD" not in n
                }
                steps = {name: started(task, build) for name, build in chosen.items()}
                found = in_turns(
                    steps, 0.1 if quick else seconds, 1, lambda: None, time.thread_time
                )
                rows += [
                    [task.name, base, name, 1e3 * spent, over]
                    for name, (spent, over) in found.items()
                ]
    finally:
        torch.set_num_threads(before)
    notes = [
        "Time of the one thread; medians of ratios to the loop by hand of the same turn.",
        f"torch {torch.__version__}.",
    ]
    columns = ["model", "base", "method", "ms", "over by hand"]
    return [
        Table(
            "waiting_cpu",
            "What a step adds to the same arithmetic by hand, CPU",
            columns,
            rows,
            notes,
        )
    ]


def rows_of(task, seconds):
    for base in BASES:
        steps = {name: started(task, build) for name, build in methods(base).items()}
        one = in_turns(steps, seconds, 1, waiting(task))
        several = in_turns(steps, seconds, RUN, waiting(task))
        for name in steps:
            yield [
                task.name,
                base,
                name,
                1e3 * one[name][0],
                one[name][1],
                1e3 * several[name][0],
                several[name][1],
            ]
        del steps
        replays = {
            n: captured(started(task, build))
            for n, build in methods(base, graph=True).items()
        }
        found = in_turns(replays, seconds / 2, GRAPH, waiting(task))
        for name, (spent, ratio) in found.items():
            yield [
                task.name,
                base,
                f"CUDA graph, {name}",
                None,
                None,
                1e3 * spent,
                ratio,
            ]
        del replays
        torch.cuda.empty_cache()


def tasks(quick):
    small = [Language(device="cuda"), Perceptron("MLP 100 M", "cuda")]
    return (
        small
        if quick
        else [*small, Language("GPT-2 small, 12 × 1024 tokens", batch=12, length=1024)]
    )


def measure(device="cuda", quick=False, seconds=1.5):
    """One table: every model, base and method."""
    if device == "cpu":
        return measure_cpu(quick, seconds)
    chosen = tasks(quick)
    rows = []
    for task in chosen:
        for row in rows_of(task, 0.1 if quick else seconds):
            print(
                *(f"{cell:.4g}" if isinstance(cell, float) else cell for cell in row),
                sep="; ",
                flush=True,
            )
            rows.append(row)
    columns = [
        "model",
        "base",
        "method",
        "ms, each step waited for",
        "over the reference",
    ]
    columns += [f"ms, {RUN} steps at a time", "over the reference "]
    notes = [
        f"The reference is “{REFERENCE}”; medians of ratios, each to the reference of the same turn.",
        f"Graphs: nonfinite='skip', AdamW(capturable=True), {GRAPH} replays at a time.",
        f"torch {torch.__version__}, {torch.get_num_threads()} threads.",
    ]
    title = (
        f"What a step adds to two backward passes and the base's step, {where(device)}"
    )
    return [Table("waiting", title, columns, rows, notes)]


def main():
    parser = argparse.ArgumentParser(
        prog="benchmarks.waiting", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument(
        "--quick", action="store_true", help="short and rough: does everything run?"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.5, help="for each method of a model"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).parent / "results",
        help="folder for the JSON",
    )
    options = parser.parse_args()
    tables = measure(options.device, options.quick, options.seconds)
    for table in tables:
        print(report.text(table), flush=True)
    name = "waiting" if options.device == "cuda" else "waiting_cpu"
    report.store(report.record(tables, quick=options.quick), options.output, name)


if __name__ == "__main__":
    main()
