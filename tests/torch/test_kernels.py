"""The passes over all parameters, every engine against float64 by hand: any layout, dtype, size and scale.

The Triton kernels run on the GPU where there is one, and in Triton's interpreter elsewhere: slow, but the same code.
"""

import itertools
import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torch
from tiebreak import rules
from tiebreak.torch import SDBGD, DynamicBarrier, kernels
from tiebreak.torch.kernels import PassEngines, torch_passes
from tiebreak.torch.kernels.torch_passes import (
    LOW_PRECISION,
    BlockedPasses,
    ForeachPasses,
    Row,
    same_memory_order,
)
from training import simple_method

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
if not CUDA:
    os.environ["TRITON_INTERPRET"] = (
        "1"  # before the kernels are imported: it is looked at when they are decorated
    )

ENGINES = ["foreach", "fused"] if CUDA else ["foreach", "pieces", "fused"]
SIZES = [0, 1, 127, 2**14, 2**14 + 1, 2**20 + 3]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def engine(name, rows):
    if name == "fused":
        pytest.importorskip("triton")
        from tiebreak.torch.kernels.triton_passes import TritonEngine

        return TritonEngine(DEVICE).bind(rows)
    return {"foreach": ForeachPasses, "pieces": BlockedPasses}[name](rows)


def laid_out(tensor, layout):
    """The same numbers in another order in memory; what is not part of the tensor is poisoned."""
    tensor = tensor.to(DEVICE)
    if layout == "offset":  # an address that is no multiple of 16 bytes
        room = torch.full(
            (tensor.numel() + 1,), float("nan"), dtype=tensor.dtype, device=DEVICE
        )
        room[1:] = tensor.reshape(-1)
        return room[1:].view(tensor.shape)
    if layout == "channels last" and tensor.dim() == 4:
        return tensor.to(memory_format=torch.channels_last)
    if layout == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided" and tensor.dim() >= 1:
        room = torch.full(
            (*tensor.shape, 2), float("nan"), dtype=tensor.dtype, device=DEVICE
        )
        room[..., 0] = tensor
        return room[..., 0]
    return tensor


def make(
    generator,
    shape,
    dtype,
    layouts=("plain",) * 3,
    scale=1.0,
    group=0,
    missing=None,
):
    tensors = [
        laid_out(
            (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(
                dtype
            ),
            layout,
        )
        for layout in layouts
    ]
    if missing is not None:
        tensors[missing] = None
    return Row(*tensors, group)


def zero(row):
    return [torch.zeros_like(row.parameter) if t is None else t for t in row[:3]]


def doubles(rows):
    return [[t.detach().double().cpu().clone() for t in zero(row)] for row in rows]


def expected_products(known):
    found = torch.zeros(3, dtype=torch.float64)
    for _, u, g in known:
        found += torch.stack([(u * g).sum(), (g * g).sum(), (u * u).sum()])
    return found


def check(name, rows, weights, skip=None):
    """Products, then the direction, then the update, each from fresh copies of the same numbers."""
    there = [r for r in rows if r.upper is not None or r.lower is not None]
    known = doubles(there)
    made = engine(name, there)
    found = made.products().cpu()
    expected = expected_products(known)
    lengths = (expected[1] * expected[2]).sqrt()
    narrow = any(r.parameter.dtype in LOW_PRECISION for r in there)
    # torch's own sums are made in float32, and those of narrow numbers on a CPU are biased: the same few bits each time
    rtol = {
        "fused": 1e-6,
        "pieces": 5e-5 if narrow else 2e-5,
        "foreach": 2e-4 if narrow else 2e-5,
    }[name]
    torch.testing.assert_close(found[1:], expected[1:], rtol=rtol, atol=0)
    assert (found[0] - expected[0]).abs() <= rtol * lengths + 1e-300
    if name == "fused":  # in the same order every time
        assert torch.equal(found, made.products().cpu())
    factors = torch.tensor(weights, dtype=torch.float64, device=DEVICE)
    flag = None if skip is None else torch.tensor(skip, device=DEVICE)
    before = [None if t is None else t.clone() for row in there for t in row[:3]]
    made.descend(factors, flag)
    for (p, u, g), row in zip(known, there, strict=True):
        a, b = (0.0, 0.0) if skip else weights[row.group]
        close(row.parameter, p - a * u - b * g, (p, a * u, b * g))
    for t, old in zip((t for row in there for t in row[:3]), before, strict=True):
        if t is not None:
            t.copy_(old)
    made.combine(factors, flag)
    for (_, u, g), row in zip(known, there, strict=True):
        a, b = (0.0, 0.0) if skip else weights[row.group]
        close(
            row.upper if row.upper is not None else row.lower,
            a * u + b * g,
            (a * u, b * g),
        )
        if name == "fused" and row.upper is not None and row.lower is not None:
            assert torch.equal(
                row.lower.double().cpu(), g
            )  # only the direction is written


def close(found, expected, terms):
    eps = torch.finfo(found.dtype).eps
    tiny = torch.finfo(found.dtype).smallest_normal * eps
    size = sum(t.abs() for t in terms)
    error = (found.detach().double().cpu() - expected).abs()
    wide = max(eps / 2, 2.0**-24 if found.dtype != torch.float64 else 0.0)
    assert (error <= 4 * wide * size + 2 * tiny).all(), error.max()


def sizes_and_dtypes():
    for name, dtype, size in itertools.product(ENGINES, DTYPES, SIZES):
        slow = name == "fused" and not CUDA and size > 2**15  # in Triton's interpreter
        yield pytest.param(name, dtype, size, marks=[pytest.mark.long] if slow else [])


@pytest.mark.parametrize(("name", "dtype", "size"), list(sizes_and_dtypes()))
def test_sizes_and_dtypes(name, dtype, size):
    generator = torch.Generator().manual_seed(size)
    rows = [make(generator, (size,), dtype), make(generator, (3, 5), dtype)]
    check(name, rows, [[0.5, 0.25]])


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "layout", ["plain", "offset", "channels last", "transposed", "strided"]
)
@pytest.mark.parametrize("shape", [(4, 3, 5, 7), (64, 33), (5,), ()])
def test_layouts(name, layout, shape, monkeypatch):
    """All three alike; `same_memory_order` tells which are plain memory; the others do not reach the kernels."""
    monkeypatch.setattr(torch_passes, "BLOCK_ELEMENTS", 37)
    rows = [make(torch.Generator().manual_seed(1), shape, torch.float32, (layout,) * 3)]
    if name == "fused" and not same_memory_order(rows[0][:3]):
        assert layout == "strided"
        return
    check(name, rows, [[0.5, 0.25]])


@pytest.mark.parametrize("name", ["foreach", "pieces"])
@pytest.mark.parametrize(
    "layouts", [("plain", "transposed", "strided"), ("transposed", "plain", "offset")]
)
def test_layouts_that_differ(name, layouts, monkeypatch):
    monkeypatch.setattr(torch_passes, "BLOCK_ELEMENTS", 37)
    rows = [make(torch.Generator().manual_seed(2), (8, 6, 3), torch.float32, layouts)]
    assert not same_memory_order(rows[0][:3])
    if name in ENGINES:
        check(name, rows, [[0.5, 0.25]])


@pytest.mark.parametrize("name", ENGINES)
def test_many_tensors_of_all_kinds_at_once(name):
    """Groups of their own, missing gradients, dtypes side by side, an empty tensor among them."""
    generator = torch.Generator().manual_seed(3)
    rows, shapes = [], [(17,), (0,), (2**14 + 5,), (3, 4, 5), (1,), (), (200,)]
    for i, shape in enumerate(shapes):
        for dtype, missing in (
            (torch.float32, None),
            (torch.bfloat16, 1),
            (torch.float16, 2),
            (torch.float64, None),
        ):
            rows.append(make(generator, shape, dtype, group=i, missing=missing))
    rows.append(Row(torch.ones(3, device=DEVICE), None, None, 0))
    check(name, rows, [[0.1 * i + 0.3, 1.0 - 0.2 * i] for i in range(len(shapes))])


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("scale", [0.0, 1e-40, 1e-30, 1e-10, 1e10, 1e25])
def test_wild_scales(name, scale):
    """Zero gradients, subnormal ones, and squares beyond float32, which the sums must not lose."""
    if name == "foreach" and scale in (1e-40, 1e-30, 1e25):
        pytest.skip("torch's own norms are made in float32")
    generator = torch.Generator().manual_seed(4)
    row = make(generator, (1000,), torch.float32, scale=scale)
    check(
        name, [row._replace(parameter=torch.ones(1000, device=DEVICE))], [[0.5, 0.25]]
    )


@pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning"
)  # NumPy's, in the interpreter
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_skipped_step_changes_nothing(name, bad):
    """Whatever is in the gradients: the parameters keep their bits, and a direction is 0."""
    rows = [
        make(torch.Generator().manual_seed(5), shape, torch.float32)
        for shape in ((2**14 + 3,), (2**15,))
    ]
    for row in rows:
        row.upper[-1] = row.lower[0] = bad
    before = [row.parameter.clone() for row in rows]
    made, weights = (
        engine(name, rows),
        torch.full((1, 2), float("nan"), dtype=torch.float64, device=DEVICE),
    )
    assert not torch.isfinite(made.products()[1:]).any()
    made.descend(weights, torch.tensor(True, device=DEVICE))
    assert all(
        torch.equal(row.parameter, old) for row, old in zip(rows, before, strict=True)
    )
    made.combine(weights, torch.tensor(True, device=DEVICE))
    assert not any(row.upper.any() for row in rows)


@given(
    st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=4),
    st.sampled_from(["plain", "offset", "channels last", "transposed", "strided"]),
    st.sampled_from(DTYPES),
    st.integers(1, 40),
    st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_pieces_cover_everything_once(shapes, layout, dtype, piece, seed):
    generator, kept = torch.Generator().manual_seed(seed), torch_passes.BLOCK_ELEMENTS
    rows = [make(generator, shape, dtype, (layout,) * 3) for shape in shapes]
    torch_passes.BLOCK_ELEMENTS = piece
    try:
        check("pieces" if not CUDA else "foreach", rows, [[0.7, -0.4]])
    finally:
        torch_passes.BLOCK_ELEMENTS = kept


def fused_optimizer(kind, params, **options):
    """An optimizer whose passes are the kernels, also where there is no GPU."""
    opt = (
        SDBGD(params, lr=0.1, **options)
        if kind == "sdbgd"
        else DynamicBarrier(kind(params), method=simple_method(), **options)
    )
    if not CUDA:
        pytest.importorskip("triton")
        from tiebreak.torch.kernels.triton_passes import TritonEngine

        opt.engines.triton_engines[DEVICE] = TritonEngine(DEVICE)
    return opt


@pytest.mark.parametrize(
    "kind",
    ["sdbgd", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), torch.optim.AdamW],
)
def test_the_optimizer_is_the_same_whichever_engine_works(kind):
    """Groups with rates of their own, a frozen parameter, one that a single loss reaches, layouts of every kind."""

    def trained(fused):
        torch.manual_seed(0)
        conv = (
            torch.nn.Conv2d(3, 4, 3)
            .to(memory_format=torch.channels_last)
            .double()
            .to(DEVICE)
        )
        linear = torch.nn.Linear(16, 2).double().to(DEVICE)
        alone = torch.nn.Parameter(torch.ones(3, dtype=torch.float64, device=DEVICE))
        linear.bias.requires_grad_(False)
        groups = [
            {"params": [*conv.parameters(), alone], "lr": 0.05},
            {"params": list(linear.parameters()), "lr": 0.1},
        ]
        opt = fused_optimizer(kind, groups) if fused else plain(kind, groups)
        x = torch.randn(8, 3, 4, 4, dtype=torch.float64, device=DEVICE)
        for _ in range(5):
            out = linear(conv(x).flatten(1))
            opt.step(
                upper=lambda out=out: (
                    out.abs().sum() * 0 + conv.weight.abs().sum() + alone.square().sum()
                ),
                lower=lambda: (linear(conv(x).flatten(1)) - 1).square().mean(),
            )
        return [p.detach().cpu() for g in groups for p in g["params"]], opt.last

    def plain(kind, groups):
        if kind == "sdbgd":
            return SDBGD(groups, lr=0.1, fused=False)
        return DynamicBarrier(kind(groups), method=simple_method(), fused=False)

    (ours, ours_last), (theirs, theirs_last) = trained(True), trained(False)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    found, expected = (last.multiplier.cpu() for last in (ours_last, theirs_last))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_sdbgd_is_the_formula_in_one_pass_and_leaves_the_gradients():
    x = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    a, b = (
        torch.tensor([1.0, -1.0, 0.5]).double(),
        torch.tensor([-2.0, 0.3, 1.0]).double(),
    )
    opt = SDBGD([x], lr=0.1, method=simple_method(barrier=0.5, regularizer=0.2))
    info = opt.step(lower=lambda: b @ x, upper=lambda: a @ x)
    multiplier = rules.sdbgd(float(a @ b), float(b @ b), 0.5, 0.2)
    assert info.multiplier.item() == pytest.approx(multiplier, rel=1e-14)
    torch.testing.assert_close(
        x.detach(), torch.tensor([1.0, 2, 3]).double() - 0.1 * (a + multiplier * b)
    )
    assert torch.equal(x.grad, a)


def test_hooks_of_the_base_see_the_direction():
    """With a hook on the base the step goes through it, and `.grad` is d."""
    x = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    opt, seen = SDBGD([x], lr=0.1), []
    opt.base.register_step_pre_hook(lambda *_: seen.append(x.grad.clone()))
    info = opt.step(upper=lambda: x.sum(), lower=lambda: x.square().sum())
    assert seen[0].square().sum().item() == pytest.approx(info.direction_squared.item())


@pytest.mark.parametrize("estimator", ["minibatch", "average"])
def test_complex_parameters_are_pairs_of_real_ones(estimator):
    def trained(make):
        x = torch.nn.Parameter(
            make(torch.tensor([1 + 2j, -1j, 0.5], dtype=torch.complex128))
        )
        opt = SDBGD([x], lr=0.1, method=simple_method(estimator=estimator))
        real = (lambda: torch.view_as_real(x)) if x.is_complex() else (lambda: x)
        for _ in range(3):
            opt.step(
                upper=lambda: (real() - 1).square().sum(),
                lower=lambda: real()[0].square().sum(),
            )
        return real().detach()

    torch.testing.assert_close(trained(lambda z: z), trained(torch.view_as_real))


def test_fused_is_what_was_asked_for():
    x = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="fused='yes' must be None, True or False"):
        SDBGD([x], lr=0.1, fused="yes")
    with pytest.raises(
        ValueError,
        match="fused=True needs parameters on a CUDA device, and one is on cpu",
    ):
        SDBGD([x], lr=0.1, fused=True)
    assert PassEngines(False).load_triton(DEVICE) is None


def test_kernels_that_do_not_run_are_replaced_with_a_word(monkeypatch):
    pytest.importorskip("triton")
    from tiebreak.torch.kernels import triton_passes

    def broken(device):
        raise OSError("no C compiler")

    monkeypatch.setattr(triton_passes, "TritonEngine", broken)
    monkeypatch.setattr(kernels, "unmet_requirement", lambda device: None)
    with pytest.warns(RuntimeWarning, match="no C compiler"):
        assert PassEngines(None).load_triton(DEVICE) is None
    with pytest.raises(
        RuntimeError, match="fused=True, and the Triton kernels do not run"
    ):
        PassEngines(True).load_triton(DEVICE)


def test_tables_follow_the_tensors():
    """Gradients at new places in every step, and some at old ones: always this step's numbers; few tables are kept."""
    x = [torch.nn.Parameter(torch.zeros(n, device=DEVICE)) for n in (5, 300)]
    opt = fused_optimizer("sdbgd", x, normalize=True)
    generator, kept = torch.Generator().manual_seed(6), []
    for k in range(25):
        grads = [
            [torch.randn(p.shape, generator=generator).to(DEVICE) for p in x]
            for _ in range(2)
        ]
        if k % 3 == 2:  # the last step's places, with new numbers
            for old, new in zip(
                (t for pair in kept[-1] for t in pair),
                (t for pair in grads for t in pair),
                strict=True,
            ):
                old.copy_(new)
            grads = kept[-1]
        kept.append(grads)
        before = [p.detach().clone() for p in x]
        for level, values in zip((opt.upper, opt.lower), grads, strict=True):
            with level():
                for p, v in zip(x, values, strict=True):
                    p.grad = v
        info = opt.step()
        gg = sum(v.double().square().sum() for v in grads[1])
        torch.testing.assert_close(info.gg.cpu(), gg.cpu(), rtol=1e-6, atol=0)
        multiplier = info.multiplier.to(DEVICE)
        for p, old, u, g in zip(x, before, *grads, strict=True):
            expected = old - 0.1 * (u + multiplier * g) / (1 + multiplier)
            torch.testing.assert_close(
                p.detach().double(), expected.double(), rtol=1e-5, atol=1e-6
            )
    engine = (
        opt.engines.triton_engines[DEVICE]
        if not CUDA
        else opt.engines.load_triton(x[0].device)
    )
    (template,) = [one for one in engine.templates.values() if len(one.lines) == 2]
    assert 1 < len(template.tables) <= 8


def test_autograd_sees_what_the_kernels_wrote():
    """Backward through a graph from before the step is an error, as with any update in place."""
    x = torch.nn.Parameter(torch.ones(3, device=DEVICE))
    opt = fused_optimizer("sdbgd", [x])
    old = (x * x).sum()
    opt.step(upper=lambda: x.sum(), lower=lambda: (x - 1).square().sum())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        old.backward()


@pytest.mark.parametrize("kind", ["sdbgd", "plain"])
def test_signs_that_autograd_keeps_as_a_bit(kind):
    """A gradient may be a view whose sign is not in its memory."""

    def trained(options):
        x = torch.nn.Parameter(torch.ones(1, device=DEVICE, dtype=torch.float64))
        opt = (
            fused_optimizer("sdbgd", [x])
            if options == "sdbgd"
            else SDBGD([x], lr=0.1, fused=False)
        )
        for level, value in ((opt.lower, 2.0), (opt.upper, 1.0)):
            with level():
                x.grad = torch._neg_view(
                    torch.full((1,), -value, device=DEVICE, dtype=torch.float64)
                )
        opt.step()
        return x.item()

    plain = SDBGD([x := torch.nn.Parameter(torch.ones(1, dtype=torch.float64))], lr=0.1)
    plain.step(upper=lambda: x.sum(), lower=lambda: 2 * x.sum())
    assert trained(kind) == pytest.approx(x.item(), rel=1e-12)


def test_one_tensor_for_both_levels_is_refused():
    x = torch.nn.Parameter(torch.ones(2))
    opt, shared = SDBGD([x], lr=0.1), torch.ones(2)
    for level in (opt.lower, opt.upper):
        with level():
            x.grad = shared
    with pytest.raises(RuntimeError, match="gradient_as_bucket_view"):
        opt.step()


def test_a_scheduler_on_the_base_is_heard():
    """Whoever wraps the base's step finds it called; `.grad` is then d."""
    x = torch.nn.Parameter(torch.ones(2))
    opt = SDBGD([x], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(opt.base, step_size=1, gamma=0.5)
    opt.step(upper=lambda: x.sum(), lower=lambda: x.square().sum())
    scheduler.step()  # warns where the base has not stepped; warnings are errors here
    assert opt.param_groups[0]["lr"] == 0.05


def test_sharded_parameters(monkeypatch):
    """DTensors, one rank: as plain tensors."""
    if sys.platform == "linux":
        monkeypatch.setenv(
            "GLOO_SOCKET_IFNAME", "lo"
        )  # a machine may have no other network
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    def trained(kind, mesh):
        torch.manual_seed(0)
        values = [torch.randn(4, 4), torch.randn(4)]
        given = [distribute_tensor(v, mesh, [Shard(0)]) if mesh else v for v in values]
        params = [torch.nn.Parameter(v) for v in given]
        model = torch.nn.ParameterList(params)
        if kind == "sdbgd":
            opt = SDBGD(params, lr=0.1, model=model)
        else:
            opt = DynamicBarrier(kind(params), method=simple_method(), model=model)
        for _ in range(3):
            opt.step(
                upper=lambda: sum((p - 1).square().sum() for p in params),
                lower=lambda: params[0].square().sum() + params[1].abs().sum(),
            )
        return [p.detach().full_tensor() if mesh else p.detach() for p in params]

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for kind in ("sdbgd", torch.optim.AdamW):
            for a, b in zip(
                trained(kind, init_device_mesh("cpu", (1,))),
                trained(kind, None),
                strict=True,
            ):
                torch.testing.assert_close(a, b)
    finally:
        dist.destroy_process_group()


def test_which_bases_can_skip_on_the_device():
    """torch's fused SGD has no momentum before its first step, and a skipped first one would leave it uninitialised."""
    from tiebreak.torch import nonfinite

    x = torch.nn.Parameter(torch.ones(3))
    x.grad = torch.full((3,), float("nan"))
    skip = torch.tensor(True)
    plain, adam = (
        torch.optim.SGD([x], lr=0.1),
        torch.optim.AdamW([x], lr=0.1, fused=True),
    )
    moved = torch.optim.SGD([x], lr=0.1, momentum=0.9, fused=True)
    assert nonfinite.can_skip_on_device(plain)
    assert nonfinite.can_skip_on_device(adam)
    assert not nonfinite.can_skip_on_device(moved)
    assert not nonfinite.can_skip_on_device(torch.optim.AdamW([x], lr=0.1))
    assert not nonfinite.can_skip_on_device(
        torch.optim.SGD([x], lr=0.1, weight_decay=0.1)
    )
    nonfinite.step_unless(adam, skip)
    assert torch.equal(x.detach(), torch.ones(3))
    assert not hasattr(adam, "found_inf")
    x.grad = torch.ones(3)
    nonfinite.step_unless(moved, None)
    assert nonfinite.can_skip_on_device(moved)
