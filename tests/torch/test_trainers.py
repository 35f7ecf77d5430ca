"""What trainers do around an optimizer: closures of their own, wrappers, whatever happens between backward and step."""

import copy
import pickle
from contextlib import nullcontext
from functools import partial

import pytest

import torch
from tiebreak.torch import SDBGD, DynamicBarrier
from training import simple_method

RULE = simple_method(barrier=2.0, regularizer=1e-3)
KINDS = {
    "momentum": lambda p: DynamicBarrier(
        torch.optim.SGD(p, lr=0.05, momentum=0.9), method=RULE
    ),
    "adamw": lambda p: DynamicBarrier(
        torch.optim.AdamW(p, lr=0.01), method=RULE, max_norm=0.5
    ),
    "schedule": lambda p: SDBGD(p),
    "average": lambda p: DynamicBarrier(
        torch.optim.SGD(p, lr=0.05),
        method=RULE.replace(estimator="average", momentum=0.1),
    ),
    "groups": lambda p: DynamicBarrier(
        torch.optim.SGD([{"params": [q]} for q in p], lr=0.05), method=RULE
    ),
    "twin": lambda p: DynamicBarrier(
        torch.optim.AdamW(p, lr=0.01),
        tolerance=0.1,
        reference="twin",
        model=torch.nn.ParameterList(p),
    ),
}


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    )


def batches(steps=5):
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(16, 6, generator=generator),
            torch.randn(16, 2, generator=generator),
        )
        for _ in range(steps)
    ]


def fit(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


def blocks(model, opt, batch, scale=lambda loss: loss):
    """Both levels, as a trainer's user writes them."""
    compared = {}
    if opt.model_copy is not None:
        with opt.reference():
            compared["reference"] = fit(model, batch)
            scale(compared["reference"]).backward()
    g = fit(model, batch)
    with opt.lower(g, **compared):
        scale(g).backward()
    f = sum(p.abs().sum() for p in model.parameters())
    with opt.upper(f):
        scale(f).backward()


def train(kind, between=lambda model, opt: opt.step()):
    model = network()
    opt = KINDS[kind](list(model.parameters()))
    for batch in batches():
        blocks(model, opt, batch)
        between(model, opt)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]), opt


# --- the direction before the step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_combining_first_changes_nothing(kind):
    """combine() and step() is step(), and in between ``.grad`` holds d = (∇f + λ∇g)/(1 + λ).

    Bit for bit, but for SDBGD, which makes its update without writing d.
    """

    def first(model, opt):
        before = [p.detach().clone() for p in model.parameters()]
        seen = opt.combine()
        assert all(
            torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)
        )
        if kind == "momentum":  # the one that is easily written down again
            length = sum(p.grad.square().sum() for p in model.parameters())
            torch.testing.assert_close(
                length * (1 + seen.multiplier) ** 2,
                seen.direction_squared.to(length),
                check_dtype=False,
            )
        with pytest.raises(
            RuntimeError,
            match=r"between opt.combine\(\) and opt.step\(\) is half a step's",
        ):
            opt.state_dict()
        assert opt.step().multiplier is seen.multiplier

    plain, opt = train(kind)
    combined, other = train(kind, first)
    exact = {"rtol": 0, "atol": 0} if kind != "schedule" else {}
    torch.testing.assert_close(plain, combined, **exact)
    assert opt.count == other.count == 5
    for now, then in zip(opt.last, other.last, strict=True):
        if now is not None:
            torch.testing.assert_close(now, then, **exact)


def test_clipping_in_the_usual_place_is_max_norm():
    def clipped(model, opt):
        opt.combine()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()

    KINDS["loose"] = lambda p: DynamicBarrier(
        torch.optim.AdamW(p, lr=0.01), method=RULE
    )
    try:
        torch.testing.assert_close(
            train("loose", clipped)[0], train("adamw")[0], rtol=1e-5, atol=1e-6
        )
    finally:
        del KINDS["loose"]


@pytest.mark.parametrize("unscale", ["nobody", "scaler"])
@pytest.mark.parametrize("kind", ["adamw", "schedule", "twin"])
def test_combining_with_a_scaler(kind, unscale):
    """Whoever takes the scale out, the steps are those without a scaler."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    model = network()
    opt = KINDS[kind](list(model.parameters()))
    for batch in batches():
        blocks(model, opt, batch, scaler.scale)
        opt.combine(scaler)
        if unscale == "scaler":
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        scaler.step(opt)
        scaler.update()
    expected, plain = train(kind)
    torch.testing.assert_close(
        torch.cat([p.detach().reshape(-1) for p in model.parameters()]), expected
    )
    assert opt.last.lower_loss.item() == pytest.approx(
        plain.last.lower_loss.item(), rel=1e-5
    )


@pytest.mark.parametrize("level", ["lower", "upper"])
def test_an_overflow_lowers_the_scale(level):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    model = network()
    opt = KINDS["adamw"](list(model.parameters()))
    before = [p.detach().clone() for p in model.parameters()]
    for name in ("lower", "upper"):
        loss = fit(model, batches()[0])
        with getattr(opt, name)(loss):
            (scaler.scale(loss) * (float("inf") if name == level else 1.0)).backward()
    assert opt.combine(scaler).skipped
    scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()
    assert scaler.get_scale() == 2.0**9
    assert opt.count == 1
    assert all(
        torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)
    )
    blocks(
        model, opt, batches()[0], scaler.scale
    )  # and the next step is an ordinary one
    opt.combine(scaler)
    scaler.step(opt)
    assert not opt.last.skipped


def test_a_direction_that_the_scaler_refuses():
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    model = network()
    opt = KINDS["adamw"](list(model.parameters()))
    before = [p.detach().clone() for p in model.parameters()]
    blocks(model, opt, batches()[0], scaler.scale)
    opt.combine(scaler)
    model[0].weight.grad[0, 0] = float("inf")
    scaler.step(opt)
    assert opt.last.skipped
    assert opt.count == 1
    assert all(
        torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)
    )


def test_a_skipped_step_stays_skipped():
    model = network()
    opt = DynamicBarrier(
        torch.optim.SGD(model.parameters(), lr=0.1), method=RULE, nonfinite="skip"
    )
    before = [p.detach().clone() for p in model.parameters()]
    blocks(model, opt, (torch.full((4, 6), float("nan")), torch.zeros(4, 2)))
    opt.combine()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert opt.step().skipped
    assert opt.count == 1
    assert all(
        torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)
    )


def test_misuse_of_combine_is_explained():
    model = network()
    opt, batch = KINDS["adamw"](list(model.parameters())), batches()[0]
    with pytest.raises(RuntimeError, match="no upper gradients in this step"):
        opt.combine()
    blocks(model, opt, batch)
    opt.combine()
    with pytest.raises(
        RuntimeError,
        match=r"combine\(\) was called before in this step: opt.step\(\) comes next",
    ):
        opt.combine()
    with (
        pytest.raises(
            RuntimeError,
            match=r"opt.lower\(\) after opt.combine\(\): opt.step\(\) comes next",
        ),
        opt.lower(),
    ):
        pass
    with pytest.raises(
        RuntimeError, match=r"step\(upper=…, lower=…\) after opt.combine\(\)"
    ):
        opt.step(upper=lambda: fit(model, batch), lower=lambda: fit(model, batch))
    opt.zero_grad()  # gives the direction up
    with pytest.raises(RuntimeError, match="no upper gradients in this step"):
        opt.step()
    scaler = torch.amp.GradScaler("cpu")
    blocks(model, opt, batch, scaler.scale)
    opt.combine()
    with pytest.raises(
        RuntimeError,
        match=r"did not know of the gradient scaler: opt.combine\(scaler\)",
    ):
        scaler.step(opt)
    opt.zero_grad()
    scaler.update()


def test_a_copy_has_no_direction():
    model = network()
    opt = KINDS["twin"](list(model.parameters()))
    blocks(model, opt, batches()[0])
    opt.combine()
    for other in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        with pytest.raises(RuntimeError, match="no upper gradients"):
            other.step()
    assert opt.step().excess == 0


def test_a_twin_resumes_with_the_learning_rate_of_its_scheduler():
    """A trainer saves after the scheduler's step, which has changed the rates since the last step of the base."""

    def begin():
        model = network()
        opt = KINDS["twin"](list(model.parameters()))
        return model, opt, torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)

    def go_on(model, opt, scheduler, data):
        for batch in data:
            blocks(model, opt, batch)
            opt.step()
            scheduler.step()

    whole, half, resumed = begin(), begin(), begin()
    go_on(*whole, batches())
    go_on(*half, batches()[:2])
    for saved, loaded in zip(half, resumed, strict=True):
        loaded.load_state_dict(copy.deepcopy(saved.state_dict()))
    go_on(*resumed, batches()[2:])
    go_on(*half, batches()[2:])  # saving changes nothing
    for other in (half, resumed):
        with torch.no_grad(), whole[1].reference(), other[1].reference():
            for p, q in zip(whole[0].parameters(), other[0].parameters(), strict=True):
                assert torch.equal(p, q)


# --- closures of a framework ---------------------------------------------------------------------------------------


def test_a_closure_is_called_once_where_the_gradients_are():
    """Lightning's calls its hooks, and returns None."""
    calls = []
    for how in ("blocks", "closures", "combine", "inside"):
        model = network()
        opt = KINDS["adamw"](list(model.parameters()))

        def closure(model=model, opt=opt, how=how):
            assert torch.is_grad_enabled()
            if how == "inside":
                blocks(model, opt, batches()[0])
            calls.append((how, all(p.grad is not None for p in model.parameters())))
            return torch.tensor(1.0) if how == "inside" else None

        if how == "closures":
            f = lambda model=model: sum(p.abs().sum() for p in model.parameters())  # noqa: E731
            opt.step(
                closure, upper=f, lower=lambda model=model: fit(model, batches()[0])
            )
        else:
            if how != "inside":
                blocks(model, opt, batches()[0])
            if how == "combine":
                opt.combine()
            opt.step(closure=closure)
        assert opt.count == 1
    assert calls == [(how, True) for how in ("blocks", "closures", "combine", "inside")]


def test_one_loss_is_refused_before_anything_moves():
    model = network()
    opt = KINDS["momentum"](list(model.parameters()))
    before = [p.detach().clone() for p in model.parameters()]

    def closure():
        opt.zero_grad()
        loss = fit(model, batches()[0])
        loss.backward()
        return loss

    with pytest.raises(
        TypeError,
        match=r"knows one loss: .*Lightning set self.automatic_optimization = False",
    ):
        opt.step(closure)
    with pytest.raises(TypeError, match=r"step\(closure=int\): give a function"):
        opt.step(3)
    assert all(
        torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)
    )
    blocks(model, opt, batches()[0])
    opt.step()


def test_closures_under_a_scaler_are_refused_later_too():
    """The first look finds no gradient at all; a later one the direction of the step before."""
    scaler = torch.amp.GradScaler("cpu")
    model = network()
    opt = KINDS["adamw"](list(model.parameters()))
    blocks(model, opt, batches()[0], scaler.scale)
    scaler.step(opt)
    scaler.update()
    lower = partial(fit, model, batches()[1])
    with pytest.raises(
        RuntimeError, match=r"a gradient scaler looks at \.grad before closures run"
    ):
        scaler.step(opt, upper=lower, lower=lower)


@pytest.mark.parametrize("kind", ["twin", "start"])
def test_autocast_around_the_step(kind):
    """Autocast keeps low-precision copies of the parameters while it lasts; those of another point are not used."""

    def run(around):
        model = network()
        base = torch.optim.SGD(model.parameters(), lr=0.05)
        opt = DynamicBarrier(base, tolerance=0.05, reference=kind, model=model)
        autocast = partial(torch.autocast, "cpu", torch.bfloat16)
        for batch in batches():

            def lower(batch=batch):
                with autocast():
                    return fit(model, batch)

            def upper(batch=batch):
                with autocast():
                    return model(batch[0]).abs().mean()

            with autocast() if around else nullcontext():
                opt.step(lower=lower, upper=upper)
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    assert torch.equal(run(around=True), run(around=False))


# --- an object that imitates the optimizer's class -----------------------------------------------------------------


class Wrapper:
    """As Lightning and Fabric make them: methods of the optimizer's class get the wrapper as their self."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.__class__ = type("Wrapped", (Wrapper, type(optimizer)), {})

    def step(self, closure=None, **kwargs):
        return self._optimizer.step(closure=closure or (lambda: None), **kwargs)

    def __getattr__(self, name):
        return getattr(self._optimizer, name)


def test_a_wrapper_is_as_good_as_the_optimizer():
    model = network()
    opt = KINDS["twin"](list(model.parameters()))
    wrapper = Wrapper(opt)
    scaler = torch.amp.GradScaler("cpu")
    blocks(model, wrapper, batches()[0], scaler.scale)
    wrapper.combine(scaler)
    scaler.step(opt)
    scaler.update()
    for batch in batches()[1:]:
        blocks(model, wrapper, batch)
        wrapper.step()
    assert wrapper.count == opt.count == 5
    assert wrapper.log() == opt.log()
    torch.testing.assert_close(
        torch.cat([p.detach().reshape(-1) for p in model.parameters()]),
        train("twin")[0],
        rtol=1e-4,
        atol=1e-6,
    )
    wrapper.tolerance = 0.5
    assert opt.tolerance == wrapper.tolerance == 0.5
    with pytest.raises(
        RuntimeError, match=r"opt.lower\(\) was entered inside opt.upper\(\)"
    ):
        blocks_inside(wrapper, opt)
    state = wrapper.state_dict()
    other = network()
    fresh = KINDS["twin"](list(other.parameters()))
    with pytest.warns(
        RuntimeWarning,
        match=r"the state has tolerance=0\.5, which takes the place of tolerance=0\.1",
    ):
        Wrapper(fresh).load_state_dict(state)
    assert fresh.count == 5
    assert fresh.tolerance == 0.5
    assert vars(wrapper).keys() == {"_optimizer"}  # nothing was written there


def blocks_inside(wrapper, opt):
    with wrapper.upper(), opt.lower():
        pass
