"""A step that does not wait for the device: made by one kernel, harmless where it is not finite, known one step later.

Without a GPU the kernels run in Triton's interpreter, and the CPU is taken for a device that the host cannot look into.
"""

import copy
import gc
import math
import os
import warnings

import pytest

import torch

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
if not CUDA:
    os.environ["TRITON_INTERPRET"] = (
        "1"  # before the kernels are imported: it is looked at when they are decorated
    )

pytest.importorskip("triton")
# NumPy's, in the interpreter.
pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value encountered:RuntimeWarning"
)

from tiebreak import rules  # noqa: E402  # after the interpreter is chosen
from tiebreak.decision import Decision  # noqa: E402
from tiebreak.torch import (  # noqa: E402
    SDBGD,
    CSVLog,
    DynamicBarrier,
    diagnostics,
    loggers,
    nonfinite,
)
from tiebreak.torch.kernels import Passes, triton_passes  # noqa: E402
from tiebreak.torch.kernels.triton_decision import (  # noqa: E402
    DecisionKernels,
    kernel_source,
)
from tiebreak.torch.step_info import PRODUCTS  # noqa: E402
from training import simple_method  # noqa: E402

KINDS = {
    "sgd": torch.optim.SGD,
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sdbgd": None,
}
KINDS |= {
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=0.1)
}


@pytest.fixture
def device(monkeypatch):
    """A device that the host cannot look into; also where there is none."""
    if not CUDA:
        # the interpreter is slow
        monkeypatch.setattr(triton_passes, "CHUNK", triton_passes.BLOCK)
        monkeypatch.setattr(Passes, "on_device", property(lambda self: True))
        monkeypatch.setattr(nonfinite, "_FUSED_DEVICES", ("cpu",))
    return DEVICE


def setup(kind="sgd", on=DEVICE, **options):
    """Two parameters in two groups, an optimizer whose passes are the kernels, and a function that makes a step."""
    torch.manual_seed(0)
    drawn = [
        torch.randn(n, dtype=torch.float64) for n in (5, 3)
    ]  # by the CPU: every device begins at the same point
    params = [torch.nn.Parameter(x.to(on)) for x in drawn]
    groups = [{"params": [params[0]]}, {"params": [params[1]], "lr": 0.05}]
    if "tolerance" not in options and kind != "sdbgd":
        options = {"method": simple_method()} | options
    if options.get("reference") == "start":
        options = options | {"model": torch.nn.ParameterList(params)}
    make = KINDS[kind]
    opt = (
        SDBGD(groups, lr=0.1, **options)
        if make is None
        else DynamicBarrier(make(groups, lr=0.1), **options)
    )
    if not CUDA:
        opt.engines.triton_engines[DEVICE] = triton_passes.TritonEngine(DEVICE)
    centre = torch.linspace(-1, 1, 5, dtype=torch.float64, device=on)

    def step(factor=1.0, closures=True, **told):
        def lower():
            return factor * (
                (params[0] - centre).square().sum() + params[1].square().sum()
            )

        def upper():
            return params[0].sum() + (params[1] - 2).square().sum()

        if closures:
            return opt.step(upper=upper, lower=lower)
        g, f = lower(), upper()
        with opt.lower(g, **told):
            (g / 2).backward()
        with opt.upper(f):
            f.backward()
        return opt.step()

    return params, opt, step


def forget(kept):
    kept.clear()
    gc.collect()


def numbers(step):
    return {
        name: value.cpu() for name, value in step._asdict().items() if value is not None
    }


def state(opt):
    kept = opt.base.state_dict()["state"]
    return [
        v.clone()
        for _, s in sorted(kept.items())
        for _, v in sorted(s.items())
        if isinstance(v, torch.Tensor)
    ]


CASES = [
    {"method": simple_method(name, barrier=0.7, regularizer=0.1)}
    for name in ("sdbgd", "sdbpg", "penalized")
]
CASES += [
    {"method": simple_method(name, barrier=lambda k: 1 / (k + 1))}
    for name in ("dbgd", "constant")
]
CASES += [
    {"method": simple_method("by_value", others={"target": 0.5})},
    {"method": simple_method("least", others={"target": 0.5})},
]
CASES += [
    {"method": simple_method(), "max_norm": 0.5},
    {"method": simple_method(), "normalize": False},
]
CASES += [
    {"tolerance": t, "reference": r}
    for t in (0.1, "5%")
    for r in (1.0, "given", lambda k: 1 + 1 / (k + 1))
]
CASES += [{"tolerance": 0.1, "reference": 1.0, "max_norm": 0.3}]
CASES += [{"tolerance": t, "reference": "start"} for t in (0.1, "5%")]


def named(options):
    """An id that is the same in every process: rules and functions by their names."""
    words = []
    for name, value in options.items():
        value = getattr(value, "rule", value)
        words.append(f"{name}={getattr(value, '__name__', value)}")
    return ", ".join(words)


@pytest.mark.parametrize("options", CASES, ids=named)
def test_the_kernel_makes_the_numbers_of_the_host(options, device, monkeypatch):
    """One formula, compiled and run by Python: weights, record and memory, step by step."""
    closures, told = options.get("reference") != "given", {}
    if not closures:
        told = {"reference": torch.tensor(1.0, dtype=torch.float64, device=DEVICE)}
    ours, opt, step = setup(**options)
    theirs, host, plain = setup(on=torch.device("cpu"), **options)
    host.engines.triton_engines.clear()
    compiled = []
    decide = DecisionKernels.decide
    monkeypatch.setattr(
        DecisionKernels,
        "decide",
        lambda self, *args: compiled.append(1) or decide(self, *args),
    )
    for k in range(6):
        if (
            k == 3
            and "tolerance" in options
            and not isinstance(options["tolerance"], str)
        ):
            opt.tolerance = host.tolerance = 0.2
        if k > 3:  # a schedule: the law looks at the rate
            for group in (*opt.param_groups, *host.param_groups):
                group["lr"] *= 0.5
        found = step(closures=closures, **told)
        with monkeypatch.context() as patch:
            patch.setattr(Passes, "on_device", property(lambda self: False))
            expected = plain(closures=closures, **{n: v.cpu() for n, v in told.items()})
        mine, other = numbers(found), numbers(expected)
        assert mine.keys() == other.keys()
        for name, value in other.items():
            torch.testing.assert_close(
                mine[name], value, rtol=1e-9, atol=1e-12, msg=name
            )
    assert len(compiled) == 6
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-9, atol=1e-12)
    for name, value in host.memory.values.items():
        assert float(opt.memory.values[name]) == pytest.approx(
            value, rel=1e-9, abs=1e-12
        ), name
    opt.check()


def test_every_rule_of_the_library_can_be_compiled():
    assert {case["method"].rule for case in CASES if "method" in case} == set(
        rules.RULES.values()
    )


def test_the_source_of_a_kernel_can_be_printed():
    decision = Decision(simple_method("dbgd"))
    source, names = kernel_source(decision, ["products", "barrier"])
    assert source.startswith(
        "def decide(report, skipped, found_inf, memory, products, barrier):"
    )
    assert "tl.load(products + 2).to(tl.float64)" in source
    assert source.count("tl.store(report + ") == len(names)
    assert names == ["upper_weight", "lower_weight", *PRODUCTS, "skipped"]
    compile(source, "decide", "exec")
    unchecked, _ = kernel_source(decision, ["products", "barrier"], checks_finite=False)
    assert len(unchecked) < len(source)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"tolerance": 0.1, "reference": 1.0}], ids=str)
def test_a_step_that_is_not_finite_is_not_made_and_named_one_step_later(
    kind, options, device
):
    params, opt, step = setup(kind, **options)
    for _ in range(3):
        step()
    before, kept, memory = (
        [p.detach().clone() for p in params],
        state(opt),
        opt.memory.state_dict(),
    )
    info = step(math.inf if options else math.nan)  # step 3: nobody knows yet
    assert opt.count == 4
    with pytest.raises(
        FloatingPointError,
        match=r"step 3 \(counted from 0\).*the one after it, which was begun",
    ):
        step()
    assert bool(info.skipped)
    assert math.isnan(info.multiplier)
    assert opt.count == 4
    assert all(map(torch.equal, before, [p.detach() for p in params]))
    assert all(map(torch.equal, kept, state(opt)))
    assert all(torch.equal(memory[name], opt.memory.values[name]) for name in memory)
    step()  # and on it goes
    opt.check()
    assert not bool(opt.last.skipped)
    assert not torch.equal(before[0], params[0].detach())


@pytest.mark.parametrize("ask", ["check", "log", "state_dict"])
def test_the_last_step_is_asked_for(ask, device):
    params, opt, step = setup("adamw")
    step()
    before = params[0].detach().clone()
    step(math.nan)
    with pytest.raises(FloatingPointError, match="step 1 "):
        getattr(opt, ask)()
    assert torch.equal(before, params[0].detach())
    assert getattr(opt, ask)() is not False  # it was said: the state can be saved


def test_a_last_step_that_nobody_asked_for_is_not_lost_in_silence(device):
    _, opt, step = setup()
    step(math.nan)
    del step
    kept = [opt]
    del opt
    with pytest.warns(
        RuntimeWarning, match="step 0, the last one, was not finite and was not made"
    ):
        forget(kept)
    _, opt, step = setup()
    step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del opt, step
        gc.collect()


def test_where_steps_are_skipped_nobody_asks(device):
    params, opt, step = setup("adamw", nonfinite="skip")
    step()
    before, kept = params[0].detach().clone(), state(opt)
    assert bool(step(math.nan).skipped)
    assert torch.equal(before, params[0].detach())
    assert all(map(torch.equal, kept, state(opt)))
    assert not opt.nonfinite.pending
    step()
    assert opt.count == 3
    _, opt, step = setup("adamw", nonfinite="ignore")
    step(math.nan)
    assert not bool(opt.last.skipped)


def test_copies_do_not_share_what_is_yet_to_be_said(device):
    _, opt, step = setup()
    step(math.nan)
    other = copy.deepcopy(opt)
    other.check()
    with pytest.raises(FloatingPointError):
        opt.check()


@pytest.mark.parametrize("kind", ["adam", "adamw", "momentum"])
def test_torch_may_choose_the_fused_kernels_and_then_takes_the_same_steps(kind, device):
    ours, opt, step = setup(kind)
    theirs, other, plain = setup(kind, fused=None)
    other.base.param_groups[0]["foreach"] = (
        False  # chosen by the user: left as it is, and the host waits
    )
    for _ in range(4):
        step()
        plain()
    assert [group["fused"] for group in opt.param_groups] == [True, True]
    assert [group["fused"] for group in other.param_groups] == [None, None]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-6, atol=1e-9)
    # A parameter that joins has no momentum yet: torch's fused SGD would fail, and the other way is taken meanwhile.
    opt.add_param_group(
        {
            "params": [
                torch.nn.Parameter(torch.ones(2, dtype=torch.float64, device=DEVICE))
            ]
        }
    )
    late = opt.param_groups[-1]["params"][0]
    for _ in range(3):
        opt.step(
            upper=lambda: sum(p.square().sum() for p in (*ours, late)),
            lower=lambda: (ours[0] - 1).square().sum(),
        )
    assert [group["fused"] for group in opt.param_groups] == [True] * 3
    opt.check()


def test_a_state_from_elsewhere_is_taken_up(device):
    """One saved before torch could choose: its counts of steps are on the host, and its groups say nothing."""
    params, opt, step = setup("adamw")
    with torch.no_grad():
        plain = torch.optim.AdamW(
            [{"params": [params[0]]}, {"params": [params[1]], "lr": 0.05}], lr=0.1
        )
    for p in params:
        p.grad = torch.ones_like(p)
    plain.step()
    step()
    opt.base.load_state_dict(plain.state_dict())
    assert not nonfinite.can_skip_on_device(opt.base)
    step()
    assert nonfinite.can_skip_on_device(opt.base)
    assert float(opt.base.state[params[0]]["step"]) == 2
    step(math.nan)
    with pytest.raises(FloatingPointError, match="step 2 "):
        opt.check()


def test_the_warning_of_a_tolerance_comes_from_the_device_too(device, monkeypatch):
    """One step later; what is judged after a while is so of the steps that the host has heard of."""
    monkeypatch.setattr(diagnostics, "FIRST_CHECK", 5)
    *_, step = setup(tolerance=1000.0, reference=1.0)
    step()
    with pytest.warns(RuntimeWarning, match="of that loss, which is") as caught:
        step()
    assert [one.filename for one in caught] == [__file__]
    *_, step = setup(tolerance=0.001, reference=100.0)
    for _ in range(6):
        step()
    with pytest.warns(RuntimeWarning, match="tolerances below its reference") as caught:
        step()
    assert [one.filename for one in caught] == [__file__]


def test_a_rule_of_ones_own_takes_the_other_way(device, monkeypatch):
    _, opt, step = setup(
        method=simple_method(lambda fg, gg: torch.clamp(gg - fg, min=0) / gg)
    )
    monkeypatch.setattr(
        DecisionKernels, "decide", lambda *_: pytest.fail("no kernel can make this")
    )
    step()
    opt.check()
    bad = [lambda: step(math.nan), opt.check]
    with pytest.raises(FloatingPointError):
        [call() for call in bad]


def test_logs_are_written_one_step_later_without_waiting(device, tmp_path, monkeypatch):
    class Slow(loggers.HostCopy):
        """A copy that has not arrived when the log asks for the first time."""

        asked = False

        @property
        def is_ready(self):
            asked, self.asked = self.asked, True
            return asked

    monkeypatch.setattr(loggers, "HostCopy", Slow)
    _, opt, step = setup("adamw", tolerance=0.1, reference=1.0, nonfinite="skip")
    path = tmp_path / "log.csv"
    with CSVLog(path) as log:
        opt.register_step_post_hook(log)
        found = []
        for k in range(5):
            found.append(step(math.nan if k == 2 else 1.0))
            assert len(path.read_text().splitlines()) == (
                0 if k == 0 else k + 1
            )  # with a header
    lines = path.read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "1", "2", "3", "4"]
    columns = lines[0].split(",")
    for k, line in enumerate(lines[1:]):
        row = dict(zip(columns, line.split(","), strict=True))
        assert row["skipped"] == str(int(k == 2))
        if k != 2:
            assert float(row["gg"]) == pytest.approx(found[k].gg.item(), rel=1e-12)
            assert float(row["excess"]) == pytest.approx(
                found[k].excess.item(), rel=1e-12
            )
