"""One barrier step, gradients given, against the floor: six words per parameter at the speed of a copy.

The inner products read both gradients, the update reads both again and the parameters, and writes the parameters.
``python -m benchmarks.step [--device cuda]`` runs it alone.
"""

import argparse
import math

import torch

from benchmarks import report
from benchmarks.table import Table, side_by_side
from tiebreak import methods
from tiebreak.torch import SDBGD, DynamicBarrier

FLOOR = "floor: 6 N words at copy speed"
OURS = "tiebreak SDBGD, nonfinite='skip'"
METHOD = methods.sdbgd.replace(barrier=1.0, regularizer=1e-8)


def naive(params, uppers, lowers):
    """As one writes it first: a product, a sum and a new tensor at a time."""

    def step():
        fg = sum((u * g).sum() for u, g in zip(uppers, lowers, strict=True))
        gg = sum(g.square().sum() for g in lowers)
        multiplier = (gg - fg).clamp_min(0) / (gg + 1e-8)
        with torch.no_grad():
            for p, u, g in zip(params, uppers, lowers, strict=True):
                p -= 1e-9 * (u + multiplier * g)

    return step


def compiled(params, uppers, lowers):
    """The same, left to torch.compile."""
    return torch.compile(naive(params, uppers, lowers), dynamic=False)


def foreach(params, uppers, lowers):
    """The obvious speed-up: torch's operations on lists of tensors."""

    def step():
        fg = torch.stack(
            [
                torch.dot(u.view(-1), g.view(-1))
                for u, g in zip(uppers, lowers, strict=True)
            ]
        ).sum()
        gg = torch.stack(torch._foreach_norm(lowers)).square().sum()
        multiplier = (gg - fg).clamp_min(0) / (gg + 1e-8)
        with torch.no_grad():
            direction = torch._foreach_mul(lowers, multiplier)
            torch._foreach_add_(direction, uppers)
            torch._foreach_add_(params, direction, alpha=-1e-9)

    return step


def sgd(params, uppers, lowers):
    """A step on one loss: three words per parameter."""
    base = torch.optim.SGD(params, lr=1e-9)

    def step():
        for p, u in zip(params, uppers, strict=True):
            p.grad = u
        base.step()

    return step


def ours(make):
    """Our optimizer with the gradients put where two backward passes would leave them."""

    def build(params, uppers, lowers):
        opt = make(params)

        def step():
            for level, grads in ((opt.lower, lowers), (opt.upper, uppers)):
                with level():
                    for p, grad in zip(params, grads, strict=True):
                        p.grad = grad
            opt.step()

        return step

    return build


def wrapped(params, **options):
    return DynamicBarrier(torch.optim.SGD(params, lr=1e-9), method=METHOD, **options)


def rows(device):
    """Name → (builder, words per parameter that it must move at least)."""
    skip = {"nonfinite": "skip"}
    known = {
        OURS: (ours(lambda p: SDBGD(p, lr=1e-9, **skip)), 6),
        "tiebreak SDBGD, nonfinite='raise' (default)": (
            ours(lambda p: SDBGD(p, lr=1e-9)),
            6,
        ),
        "tiebreak DynamicBarrier(SGD), nonfinite='skip'": (
            ours(lambda p: wrapped(p, **skip)),
            8,
        ),
        "tiebreak DynamicBarrier(SGD), 'raise' (default)": (ours(wrapped), 8),
    }
    if device == "cuda":
        known["tiebreak SDBGD, 'skip', fused=False"] = (
            ours(lambda p: SDBGD(p, lr=1e-9, fused=False, **skip)),
            6,
        )
        known["torch.compile of the naive step"] = (compiled, 6)
    return known | {
        "foreach": (foreach, 6),
        "naive": (naive, 6),
        "plain SGD on one loss": (sgd, 3),
    }


def shapes(count, tensors):
    """`tensors` tensors, `count` numbers in all."""
    return [(count // tensors,)] * (tensors - 1) + [
        (count - (tensors - 1) * (count // tensors),)
    ]


def transformer(layers=16, width=2048, hidden=8192, vocabulary=128256, kv=512):
    """The parameters of a decoder of 1.2 billion, a matrix or a vector at a time (the sizes of Llama 3.2 1B)."""
    block = [
        (width, width),
        (kv, width),
        (kv, width),
        (width, width),
        (hidden, width),
        (hidden, width),
    ]
    return [
        (vocabulary, width),
        *[*block, (width, hidden), (width,), (width,)] * layers,
        (width,),
    ]


def table(name, title, sizes, device, dtype=torch.float32, seconds=2.0, leave_out=()):
    """Every row on tensors of these shapes, gradients fresh and random."""
    generator = torch.Generator(device).manual_seed(0)

    def random():
        return [
            torch.randn(s, generator=generator, device=device, dtype=dtype)
            for s in sizes
        ]

    params, uppers, lowers = [p.requires_grad_() for p in random()], random(), random()
    count = sum(math.prod(s) for s in sizes)
    source = torch.cat([u.reshape(-1) for u in uppers])
    target = torch.empty_like(source)
    chosen = {k: v for k, v in rows(device).items() if k not in leave_out}
    functions = {"copy": lambda: target.copy_(source)}
    for label, (build, _) in chosen.items():
        functions[label] = build(params, uppers, lowers)
    check(uppers, lowers, device)
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    if device == "cuda":
        functions = {label: repeated(function) for label, function in functions.items()}
    times = side_by_side(functions, seconds=seconds, wait=wait)
    copy = times.pop("copy") / (REPEAT if device == "cuda" else 1)
    floor, body = 3 * copy, []
    body.append([FLOOR, 1e3 * floor, 1.0, 6])
    for label, (_, words) in chosen.items():
        spent = times[label] / (REPEAT if device == "cuda" else 1)
        body.append([label, 1e3 * spent, spent / floor, words])
    size = torch.finfo(dtype).bits // 8
    notes = [
        f"{count:.3g} parameters in {len(sizes)} tensors, {str(dtype).removeprefix('torch.')}; a copy moved "
        f"{2 * size * count / copy / 1e9:.0f} GB/s, read and written.",
        "The last column is what the row must move at least, in words per parameter.",
    ]
    if device == "cpu":
        notes.append(
            "A copy is not the fastest way to move memory on a CPU: plain SGD moves its three words in less than half "
            "of this floor. Read it as a unit."
        )
    columns = ["step", "ms", "/ floor", "least words"]
    return Table(
        name,
        title,
        columns,
        body,
        notes,
        {"kind": "bars", "x": "step", "y": ["/ floor"], "log": ""},
    )


REPEAT = 30  # steps between two waits for the device, as in training: there, too, the host runs ahead


def repeated(function):
    def several():
        for _ in range(REPEAT):
            function()

    return several


def check(uppers, lowers, device):
    """A fast step that is wrong is no step: SDBGD against float64 on the first tensors, before anything is timed."""
    few = slice(0, 3)
    params = [torch.nn.Parameter(torch.ones_like(u)) for u in uppers[few]]
    ours(lambda p: SDBGD(p, lr=1e-3, method=METHOD))(params, uppers[few], lowers[few])()
    fg = sum(
        (u.double() * g.double()).sum()
        for u, g in zip(uppers[few], lowers[few], strict=True)
    )
    gg = sum(g.double().square().sum() for g in lowers[few])
    multiplier = (gg - fg).clamp_min(0) / (gg + 1e-8)
    for p, u, g in zip(params, uppers[few], lowers[few], strict=True):
        expected = 1 - 1e-3 * (u.double() + multiplier * g.double())
        error = (p.detach().double() - expected).abs().max().item()
        assert error <= 2 * torch.finfo(p.dtype).eps * expected.abs().max().item(), (
            device,
            error,
        )


def measure(device="cpu", quick=False):
    """Tables at 10⁷ and 10⁸ parameters on a CPU; at 5·10⁸ and on a real model's shapes on a GPU."""
    if device == "cpu":
        return [
            table(
                f"step_cpu_1e{k}",
                f"One barrier step on a CPU, 10^{k} parameters",
                shapes(10**k, 20),
                device,
                seconds=s,
            )
            for k, s in (((7, 0.5),) if quick else ((7, 1.0), (8, 2.0)))
        ]
    naive_rows = (
        "torch.compile of the naive step",
    )  # it takes minutes to compile hundreds of tensors
    return [
        table(
            "step_gpu_flat",
            "One barrier step, 5·10^8 parameters in 200 tensors",
            shapes(5 * 10**8, 200),
            device,
        ),
        table(
            "step_gpu_model",
            "One barrier step, the shapes of a 1.2-billion-parameter transformer",
            transformer(),
            device,
            leave_out=naive_rows,
        ),
        table(
            "step_gpu_bf16",
            "The same shapes in bfloat16",
            transformer(),
            device,
            dtype=torch.bfloat16,
            leave_out=naive_rows,
        ),
    ]


def ratios(quick=True):
    """For the regression check: SDBGD's step over the floor."""
    found = measure("cpu", quick)
    return {
        f"cpu barrier step / floor, {t.name.removeprefix('step_cpu_')}": row[2]
        for t in found
        for row in t.rows
        if row[0] == OURS
    }


def main():
    parser = argparse.ArgumentParser(
        prog="benchmarks.step", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no CUDA device here")
    for found in measure(options.device, options.quick):
        print(report.text(found), flush=True)


if __name__ == "__main__":
    main()
