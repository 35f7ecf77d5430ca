"""A whole training step, ours and the peers side by side: ``python -m benchmarks.training [--device cuda] [--quick]``.

Two losses on two batches, the same for everyone; forward passes, backward passes and the base optimizer's step are all
in the time. On a CPU two multilayer perceptrons; on a GPU a transformer of GPT-2's small size, and a large perceptron.
"""

import argparse
import functools
import json
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import report, speed_peers
from benchmarks.table import Table, side_by_side
from tiebreak.provenance import stamp

WIDTHS = {"MLP 1 M": (784, 640, 640, 128, 64), "MLP 10 M": (784, 2048, 2048, 2048, 64)}
WIDTHS |= {"MLP 100 M": (784, 6912, 6912, 6912, 64), "check": (784, 64, 64, 10)}
REFERENCE = speed_peers.REFERENCE
COLUMNS = ["method", "gradients apart", "ms per step", "ratio"]
COLUMNS += [
    "peak memory MB",
    "memory of model and step MB",
    "memory beyond the reference MB",
]


class Perceptron:
    """Cross-entropy on two random batches of 128."""

    def __init__(self, name, device="cpu"):
        self.name, self.device, self.widths = name, device, WIDTHS[name]
        torch.manual_seed(0)
        shape, classes = (128, self.widths[0]), self.widths[-1]
        self.batches = [
            (
                torch.randn(shape).to(device),
                torch.randint(classes, shape[:1]).to(device),
            )
            for _ in range(2)
        ]

    def model(self):
        torch.manual_seed(0)
        pairs = zip(self.widths, self.widths[1:], strict=False)
        with torch.device(
            self.device
        ):  # made there: drawing 10⁸ numbers on a CPU takes seconds
            layers = [
                layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU())
            ]
        return nn.Sequential(*layers[:-1])

    def losses(self, model):
        return [
            functools.partial(lambda x, y: F.cross_entropy(model(x), y), *batch)
            for batch in self.batches
        ]

    def without_jax(self):
        """Why JAX cannot run this where PyTorch does, or None."""
        import jax

        return (
            None
            if self.device == "cpu" or jax.default_backend() == "gpu"
            else "JAX sees no GPU"
        )


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        q, k, v = (
            self.qkv(self.before(x))
            .unflatten(-1, (3, self.heads, -1))
            .permute(2, 0, 3, 1, 4)
        )
        x = x + self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )
        return x + self.mlp(self.between(x))


class Decoder(nn.Module):
    """GPT-2's small size; the output layer is the embedding."""

    def __init__(self, width=768, depth=12, heads=12, words=50304, length=512):
        super().__init__()
        self.words, self.places = (
            nn.Embedding(words, width),
            nn.Embedding(length, width),
        )
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.last = nn.LayerNorm(width)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        return F.linear(self.last(self.blocks(x)), self.words.weight)


class Language:
    """Next-token loss on two random batches of 8 × 512 tokens, bf16 autocast."""

    def __init__(self, name="GPT-2 small", device="cuda", batch=8, **shape):
        self.name, self.device, self.shape = name, device, shape
        torch.manual_seed(0)
        size = (batch, shape.get("length", 512) + 1)
        self.batches = [
            torch.randint(shape.get("words", 50304), size).to(device) for _ in range(2)
        ]

    def model(self):
        torch.manual_seed(0)
        with torch.device(self.device):
            return Decoder(**self.shape)

    def losses(self, model):
        def loss(tokens):
            with torch.autocast(self.device, torch.bfloat16):
                return F.cross_entropy(
                    model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
                )

        return [functools.partial(loss, tokens) for tokens in self.batches]

    def without_jax(self):
        return "this model is not written in JAX here"


def tasks(device, quick):
    if device == "cpu":
        return [
            Perceptron(name) for name in ("MLP 1 M", "MLP 10 M")[: 1 if quick else 2]
        ]
    return [Language(device=device), Perceptron("MLP 100 M", device)]


# --- one table per model -------------------------------------------------------------------------------------------


def attempt(method, task, base="SGD"):
    """A function that makes a step, after its first one; and why there is none, where there is none."""
    if missing := method.missing():
        return None, f"not installed ({', '.join(missing)})"
    if method.jax and (reason := task.without_jax()):
        return None, f"not run: {reason}"
    try:
        step = method.start(task, base).step
        step()
    except Exception as error:
        if (
            not method.needs
        ):  # ours and the baselines have to work; a peer's failure is a result
            raise
        return (
            None,
            f"failed: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:80]}",
        )
    return step, None


def begin(methods, task, base="SGD"):
    """Name → a function that makes a step, of those that can; and name → why not, of the others."""
    tried = {method.name: attempt(method, task, base) for method in methods}
    steps = {name: step for name, (step, _) in tried.items() if step}
    return steps, {name: reason for name, (_, reason) in tried.items() if reason}


def waiting(task):
    return torch.cuda.synchronize if task.device == "cuda" else lambda: None


def resident(field):
    """Megabytes of this process: "VmRSS", what it holds now, or "VmHWM", the most it held."""
    try:  # getrusage would count what the parent held before exec
        lines = Path("/proc/self/status").read_text().splitlines()
        return (
            next(int(line.split()[1]) for line in lines if line.startswith(field))
            * 1024
            / 1e6
        )
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def peak(name, method, steps=5):
    """Megabytes before the model and at the peak of its steps: for a process of its own.

    The step of a tiny model comes first. What a peer imports is then counted before: it does not grow with the model.
    """
    (chosen,) = [m for m in speed_peers.METHODS if m.name == method]
    chosen.start(Perceptron("check")).step()
    before = resident("VmRSS")
    step = chosen.start(Perceptron(name)).step
    for _ in range(steps):
        step()
    return before, resident("VmHWM")


def cpu_memory(task, methods):
    """Name → megabytes before and at the peak, each from a process of its own."""

    def child(method):
        code = f"from benchmarks.training import peak; print(*peak({task.name!r}, {method.name!r}))"
        root = Path(__file__).parents[1]
        alone = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
        }  # two at a time would wait for each other's threads
        output = subprocess.check_output(
            [sys.executable, "-c", code], cwd=root, env=alone, text=True
        )
        return tuple(float(word) for word in output.split()[-2:])

    with ThreadPoolExecutor(2) as pool:
        return dict(
            zip((m.name for m in methods), pool.map(child, methods), strict=True)
        )


def cuda_memory(task, methods):
    """The same of PyTorch's allocator, each method alone on the device; not of JAX, which has its own."""
    found = {}
    attempt(methods[0], task)  # cuBLAS takes its workspace once
    for method in (m for m in methods if not m.jax):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step, _ = attempt(method, task)
        if step:
            step()
            step()
            found[method.name] = before / 1e6, torch.cuda.max_memory_allocated() / 1e6
        del step
    return found


def compare(task, seconds, remember=True):
    """The table of one model: every method, its time, its ratio to the reference, its memory."""
    methods, used = speed_peers.METHODS, {}
    if remember and task.device == "cuda":  # before all models are on the device
        used = cuda_memory(task, methods)
    steps, failures = begin(methods, task)
    if remember and task.device == "cpu":
        used = cpu_memory(task, [m for m in methods if m.name in steps])
    times = side_by_side(steps, seconds, wait=waiting(task))
    grown = {name: most - before for name, (before, most) in used.items()}
    rows = []
    for method in methods:
        name, apart = method.name, "yes" if method.apart else "no"
        if name not in times:
            rows.append([name, apart, failures[name], *[None] * 4])
            continue
        held = (
            [used[name][1], grown[name], grown[name] - grown[REFERENCE]]
            if name in used
            else [None] * 3
        )
        rows.append(
            [name, apart, 1e3 * times[name], times[name] / times[REFERENCE], *held]
        )
    count = sum(p.numel() for p in task.model().parameters())
    title = f"A whole training step: {task.name}, {count / 1e6:.1f} M parameters, {where(task.device)}"
    plot = {"kind": "bars", "x": "method", "y": ["ratio"], "log": ""}
    return Table(
        "training-" + task.name.lower().replace(" ", "-"),
        title,
        COLUMNS,
        rows,
        remarks(task, remember),
        plot,
    )


def remarks(task, remember):
    memory = "not measured here"
    if remember and task.device == "cuda":
        memory = "PyTorch's allocator over three steps, the method alone on the device"
    elif remember:
        memory = (
            "resident, of a process of its own that makes five steps. The peak has everything; “of model and step” "
            "leaves out what was held before the model was made, imports above all. JAX's has compilation in it"
        )
    found = ", ".join(
        f"{name} {version}" for name, version in speed_peers.versions().items()
    )
    return [
        f"Two losses on two batches; base SGD; ratio to “{REFERENCE}”. Medians, methods taken in turns in one process.",
        "Gradients apart: yes where the multiplier can depend on both gradients; no where one loss is differentiated.",
        "TorchJD: parallel_chunk_size=1 and optimize_gramian_computation=True, which its documentation has for memory; "
        "“default call” has neither.",
        "optax rows: the same model in JAX, one jitted step; their ratio is to PyTorch's reference.",
        "torchopt solves another problem: the gradient of the upper loss through a step on the lower one.",
        f"Memory: {memory}.",
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; {found}.",
    ]


def where(device):
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def overhead(chosen, seconds):
    """What ours adds to two backward passes and the base optimizer's step, for SGD and AdamW."""
    known = {method.name: method for method in speed_peers.METHODS}
    extra = speed_peers.Method(
        "ours: DynamicBarrier, nonfinite='ignore'",
        True,
        speed_peers.ours(nonfinite="ignore"),
    )
    hand = known["DBGD by hand"]
    rows = []
    for task in chosen:
        for base in speed_peers.BASES:
            own = [
                m for m in speed_peers.OURS if base == "SGD" or m.name != "ours: SDBGD"
            ]  # SDBGD brings its SGD
            steps, _ = begin([known[REFERENCE], *own, extra, hand], task, base)
            times = side_by_side(steps, seconds, wait=waiting(task))
            reference = times.pop(REFERENCE)
            for name, spent in times.items():
                added = spent - reference
                rows.append(
                    [
                        task.name,
                        base,
                        name,
                        *(1e3 * t for t in (spent, reference, added)),
                        added / reference,
                    ]
                )
            steps.clear()
    columns = [
        "model",
        "base",
        "method",
        "ms per step",
        "ms of the reference",
        "overhead ms",
        "overhead share",
    ]
    notes = [
        f"The reference is “{REFERENCE}”, in turns with the others of the same model and base."
    ]
    title = f"Overhead of ours over two backward passes and the base optimizer, {where(chosen[0].device)}"
    return Table("training-overhead", title, columns, rows, notes)


def measure(device="cpu", quick=False):
    """All tables; raises where methods that should make the same step do not."""
    return list(tables(device, quick))


def tables(device, quick):
    """The tables, as they are ready."""
    speed_peers.check(Perceptron("check", device))
    chosen, seconds = tasks(device, quick), 0.2 if quick else 1.2
    for task in chosen:
        # A process holds some 400 MB before any model: on a CPU only the largest model's memory stands out.
        yield compare(
            task, seconds, not quick and (device == "cuda" or task is chosen[-1])
        )
    # The first transformer is small enough for the host to be the slower one; a usual batch keeps the device busy.
    more = (
        [Language("GPT-2 small, 12 × 1024 tokens", batch=12, length=1024)]
        if device == "cuda"
        else []
    )
    yield overhead([*chosen, *more], seconds)


def main():
    parser = argparse.ArgumentParser(
        prog="benchmarks.training", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--quick", action="store_true", help="short and rough: does everything run?"
    )
    parser.add_argument("--output", type=Path, help="keep the tables as JSON")
    options = parser.parse_args()
    kept = []
    for table in tables(options.device, options.quick):
        print(report.text(table), flush=True)
        kept.append(asdict(table))
        if (
            options.output
        ):  # each as it comes: what was measured is kept if a later one fails
            options.output.parent.mkdir(parents=True, exist_ok=True)
            found = {**stamp(), "tables": kept}
            options.output.write_text(
                json.dumps(found, indent=1, ensure_ascii=False) + "\n"
            )


if __name__ == "__main__":
    main()
