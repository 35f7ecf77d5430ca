"""The life of a torch optimizer, in any order that a user may think of; and states that somebody has damaged.

Whatever is done: parameters stay finite unless the user made them otherwise, a step that is skipped or refused changes
nothing, training that is resumed equals training that was not stopped, and every error is a sentence of ours.
"""

import copy
import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
from fuzzing import NUMBERS, VALUES, damaged, inputs, mangled, only_ours
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

torch = pytest.importorskip("torch")

from tiebreak.torch import SDBGD, CSVLog, DynamicBarrier, GrowingBatches  # noqa: E402  # after the skip
from training import simple_method  # noqa: E402

BASES = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(
        params, lr=0.05, momentum=0.9, weight_decay=0.01
    ),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.02),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
    "sdbgd": None,
}
KINDS: dict[str, dict[str, Any]] = {
    "rule": {"method": simple_method(regularizer=1e-3)},
    "law": {"method": simple_method(barrier=lambda k: 1 + k, regularizer=0.0)},
    "average": {"method": simple_method(estimator="average")},
    "number": {"tolerance": 0.05, "reference": 0.3},
    "given": {"tolerance": "5%", "reference": "given"},
    "start": {"tolerance": 0.05, "reference": "start"},
    "twin": {"tolerance": "5%", "reference": "twin"},
}
BAD = {"none": 1.0, "nan": math.nan, "inf": math.inf, "huge": 1e30, "zero": 0.0}


class Net(torch.nn.Module):
    """A small network, and parameters that join later."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.extra = inner, torch.nn.ParameterList()

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class Life(RuleBasedStateMachine):
    """One optimizer and its model; beside it a second pair that is given the same, and never stopped."""

    @initialize(
        kind=st.sampled_from(sorted(KINDS)),
        base=st.sampled_from(sorted(BASES)),
        nonfinite=st.sampled_from(["raise", "skip", "ignore"]),
        max_norm=st.sampled_from([None, 1.0, 1e-3]),
    )
    def begin(
        self, kind: str, base: str, nonfinite: str, max_norm: float | None
    ) -> None:
        self.options: dict[str, Any] = {
            "nonfinite": nonfinite,
            "max_norm": max_norm,
            **KINDS[kind],
        }
        self.kind, self.base, self.seed = kind, base, 0
        self.finite = True  # whether the user has seen to it
        self.calm = (
            True  # whether nothing was done to one that was not done to the other
        )
        self.added: list[str] = []
        self.model, self.opt = self.made()
        self.twin_model, self.twin_opt = self.made()

    def made(self) -> tuple[Any, Any]:
        torch.manual_seed(5)
        layers = [
            torch.nn.Linear(3, 4),
            torch.nn.BatchNorm1d(4),
            torch.nn.Tanh(),
            torch.nn.Linear(4, 2),
        ]
        model = torch.nn.Sequential(*layers).double()
        model = Net(model)
        params = [
            {"params": list(layers[0].parameters())},
            {"params": [p for m in layers[1:] for p in m.parameters()]},
        ]
        if self.base == "sdbgd":
            return model, SDBGD(params, lr=0.05, model=model, **self.options)
        return model, DynamicBarrier(
            BASES[self.base](params), model=model, **self.options
        )

    def pairs(self) -> list[tuple[Any, Any]]:
        return [(self.model, self.opt), (self.twin_model, self.twin_opt)]

    def losses(
        self, model: Any, bad: str = "none", at: str = "none"
    ) -> tuple[Any, Any]:
        """Closures of this step's batch; one of them is spoilt."""
        generator = torch.Generator().manual_seed(self.seed)
        dtype = next(model.parameters()).dtype
        x, y = (
            torch.randn(6, n, generator=generator, dtype=torch.float64).to(dtype)
            for n in (3, 2)
        )
        size = {
            level: BAD[bad] if at in (level, "both") else 1.0
            for level in ("lower", "upper")
        }

        def lower() -> Any:
            return size["lower"] * (model(x) - y).square().mean()

        def upper() -> Any:
            return size["upper"] * (
                model(x).abs().mean() + sum(p.square().sum() for p in model.extra)
            )

        return lower, upper

    def both(self, act: Any, restore: bool = True) -> list[BaseException | None]:
        """Do the same to both pairs. What is refused must be refused alike, with a sentence, and change nothing."""
        found: list[BaseException | None] = []
        for model, opt in self.pairs():
            before = [p.detach().clone() for p in model.parameters()]
            with warnings.catch_warnings(), only_ours() as said:
                warnings.simplefilter("ignore")
                act(model, opt)
            found.append(said[0] if said else None)
            if said and restore:
                for p, value in zip(model.parameters(), before, strict=True):
                    assert torch.equal(p.detach().nan_to_num(), value.nan_to_num()), (
                        "an error has moved the parameters"
                    )
        assert [type(error) for error in found] == [
            type(found[0])
        ] * 2 or not self.calm, found
        return found

    # --- steps ---

    @rule(
        bad=st.sampled_from(sorted(BAD)),
        at=st.sampled_from(["none", "none", "lower", "upper", "both"]),
    )
    def closures(self, bad: str, at: str) -> None:
        self.seed += 1
        self.step_by(lambda model, opt: self._closures(model, opt, bad, at), bad, at)

    def _closures(self, model: Any, opt: Any, bad: str, at: str) -> Any:
        lower, upper = self.losses(model, bad, at)
        return opt.step(lower=lower, upper=upper)

    @rule(
        bad=st.sampled_from(sorted(BAD)),
        at=st.sampled_from(["none", "none", "lower", "upper", "both"]),
        parts=st.integers(1, 3),
        number=st.booleans(),
        first=st.sampled_from(["lower", "upper"]),
    )
    def blocks(self, bad: str, at: str, parts: int, number: bool, first: str) -> None:
        self.seed += 1

        def act(model: Any, opt: Any) -> Any:
            lower, upper = self.losses(model, bad, at)
            for _ in range(parts):
                reference = None
                if self.kind == "twin":
                    with opt.reference():
                        value = lower()
                        (value / parts).backward()
                        reference = value.detach()
                elif self.kind == "start":
                    with opt.reference(), torch.no_grad():
                        reference = lower()
                elif self.kind == "given":
                    reference = 0.3
                for level in (first, {"lower": "upper", "upper": "lower"}[first]):
                    loss = {"lower": lower, "upper": upper}[level]()
                    extra = (
                        {"reference": reference}
                        if level == "lower" and reference is not None
                        else {}
                    )
                    with getattr(opt, level)(float(loss) if number else loss, **extra):
                        (loss / parts).backward()
            return opt.step()

        self.step_by(act, bad, at)

    def step_by(self, act: Any, bad: str, at: str) -> None:
        counts = [opt.count for _, opt in self.pairs()]
        before = [copy.deepcopy(list(model.parameters())) for model, _ in self.pairs()]
        infos: list[Any] = []
        found = self.both(lambda model, opt: infos.append(act(model, opt)))
        if found[0] is None and infos and bool(infos[0].skipped):
            for (model, _), old in zip(self.pairs(), before, strict=True):
                for p, value in zip(model.parameters(), old, strict=True):
                    assert torch.equal(p.nan_to_num(), value.nan_to_num()), (
                        "a skipped step has moved the parameters"
                    )
        if (
            self.options["nonfinite"] == "ignore"
            and (found[0] is None)
            and at != "none"
            and bad != "none"
        ):
            self.finite = False  # as was asked for
        if found[0] is None:
            assert [opt.count for _, opt in self.pairs()] == [
                count + 1 for count in counts
            ] or not self.calm

    @rule(where=st.sampled_from(["lower", "upper", "closure"]))
    def an_error_of_the_users(self, where: str) -> None:
        """It comes through as it is, and the next step begins anew."""

        class Mine(Exception):
            pass

        def fail() -> Any:
            raise Mine

        def stumble(model: Any, opt: Any) -> None:
            lower, _ = self.losses(model)
            if where == "closure":
                opt.step(lower=lower, upper=fail)
            with getattr(opt, where)():
                lower().backward()
                fail()

        for model, opt in self.pairs():
            before = [p.detach().clone() for p in model.parameters()]
            with pytest.raises(Mine):
                stumble(model, opt)
            assert all(
                torch.equal(p.nan_to_num(), b.nan_to_num())
                for p, b in zip(model.parameters(), before, strict=True)
            )

    @rule(
        level=st.sampled_from(["lower", "upper", "both"]),
        what=st.sampled_from(["leave", "zero", "step", "grad", "none"]),
    )
    def half_a_step(self, level: str, what: str) -> None:
        """Blocks that are abandoned, or gradients that somebody changes: `zero_grad` mends all of it."""
        self.seed += 1

        def act(model: Any, opt: Any) -> None:
            lower, upper = self.losses(model)
            for name, loss in (("lower", lower), ("upper", upper)):
                if level in (name, "both"):
                    with getattr(opt, name)():
                        loss().backward()
            for p in model.parameters():
                if what == "grad" and p.grad is not None:
                    p.grad.mul_(2)
                elif what == "none":
                    p.grad = None
            if what in ("step", "grad", "none"):
                opt.step()

        self.both(act)
        if what != "leave":
            self.both(lambda model, opt: opt.zero_grad())
        else:
            self.both(lambda model, opt: opt.forget())

    @rule(
        closure=st.sampled_from(
            [
                None,
                3,
                "x",
                lambda: None,
                lambda: 1.0,
                lambda: torch.ones(2),
                lambda: torch.ones(()),
            ]
        )
    )
    def bad_calls(self, closure: Any) -> None:
        def act(model: Any, opt: Any) -> None:
            lower, _ = self.losses(model)
            try:
                opt.step(lower=lower, upper=closure)
            except RuntimeError as error:  # a loss without a graph
                if "closure must return its loss" not in str(error):
                    raise

        self.both(act)
        self.both(lambda model, opt: opt.zero_grad())

    @rule(
        loss=st.sampled_from(VALUES),
        reference=st.sampled_from([None, *VALUES[:24]]),
        weight=st.sampled_from([1.0, *VALUES]),
    )
    def bad_blocks(self, loss: Any, reference: Any, weight: Any) -> None:
        def act(model: Any, opt: Any) -> None:
            lower, _ = self.losses(model)
            with opt.lower(loss, reference=reference, weight=weight):
                lower().backward()

        self.both(act)
        self.both(lambda model, opt: opt.zero_grad())

    # --- what changes ---

    @rule(tolerance=st.sampled_from([0.1, "3%", 1e-6, *VALUES]))
    def tolerate(self, tolerance: Any) -> None:
        def act(model: Any, opt: Any) -> None:
            opt.tolerance = tolerance

        self.both(act)

    # Until 2.13 torch's Adagrad gives no state to groups that are added.
    @precondition(
        lambda self: (
            len(self.added) < 3
            and (self.base != "adagrad" or torch.__version__ >= "2.13")
        )
    )
    @rule()
    def add_group(self) -> None:
        self.added.append("")

        def act(model: Any, opt: Any) -> None:
            like = next(model.parameters())
            model.extra.append(
                torch.nn.Parameter(torch.full((2,), 0.5, dtype=like.dtype))
            )
            opt.add_param_group({"params": [model.extra[-1]]})

        self.both(act, restore=False)

    @rule(number=st.integers(0, 5), trained=st.booleans())
    def freeze(self, number: int, trained: bool) -> None:
        for model, _ in self.pairs():
            parameters = list(model.parameters())
            parameters[number % len(parameters)].requires_grad_(trained)

    @rule(dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    def move(self, dtype: Any) -> None:
        """The model in another precision, as `model.to` does it; torch's optimizers follow where a state is loaded."""
        for model, opt in self.pairs():
            opt.zero_grad()
            model.to(dtype)
            if self.base not in ("sgd", "sdbgd"):
                opt.load_state_dict(opt.state_dict())

    @rule(lr=st.sampled_from([0.0, 0.01, 0.3]))
    def set_rate(self, lr: float) -> None:
        for _, opt in self.pairs():
            for group in opt.param_groups:
                group["lr"] = lr

    # --- saved, loaded, copied ---

    @rule()
    def resume(self) -> None:
        """One goes on in a new process, as it were; the other never stops."""
        state, weights = (
            copy.deepcopy(self.opt.state_dict()),
            copy.deepcopy(self.model.state_dict()),
        )
        trained = [p.requires_grad for p in self.model.parameters()]
        dtype = next(self.model.parameters()).dtype
        self.model, self.opt = self.made()
        for _ in self.added:
            self.model.extra.append(
                torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
            )
            self.opt.add_param_group({"params": [self.model.extra[-1]]})
        self.model.to(dtype)
        for p, requires in zip(self.model.parameters(), trained, strict=True):
            p.requires_grad_(requires)
        self.model.load_state_dict(weights)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "the state has tolerance="
            )  # it was changed meanwhile
            self.opt.load_state_dict(state)
        self.twin_opt.zero_grad()

    @rule()
    def copied(self) -> None:
        self.model, self.opt = copy.deepcopy((self.model, self.opt))

    @rule(kind=st.sampled_from(sorted(KINDS)))
    def from_another(self, kind: str) -> None:
        """A state of other settings is taken up or refused; what is refused has changed nothing."""
        mine = (self.options, self.kind)
        self.options, self.kind = (
            {"nonfinite": "skip", "max_norm": None, **KINDS[kind]},
            kind,
        )
        try:
            _, other = self.made()
        finally:
            self.options, self.kind = mine
        before = copy.deepcopy(self.opt.state_dict())
        with warnings.catch_warnings(), only_ours() as said:
            warnings.simplefilter("ignore")  # of a tolerance in other words
            other.load_state_dict(copy.deepcopy(self.opt.state_dict()))
        assert same(before, self.opt.state_dict())
        assert said or kind == self.kind or kind in ALIKE.get(self.kind, ()), (
            self.kind,
            kind,
        )

    @rule(data=st.data())
    def from_a_damaged_one(self, data: Any) -> None:
        """Refused, and nothing has changed; or it does no harm."""
        state, where = data.draw(damaged_state(self.opt.state_dict()))
        before = copy.deepcopy(self.twin_opt.state_dict())
        copied_model, taken = copy.deepcopy((self.twin_model, self.twin_opt))
        with warnings.catch_warnings(), only_ours() as said:
            warnings.simplefilter("ignore")
            taken.load_state_dict(state)
        if said:
            assert same(before, taken.state_dict()), (
                "a state that was refused has changed something"
            )
        if said or where in ("text", "broken"):
            lower, upper = self.losses(copied_model)
            with warnings.catch_warnings(), only_ours():
                warnings.simplefilter("ignore")
                taken.step(lower=lower, upper=upper)

    # --- what always holds ---

    @invariant()
    def parameters_are_finite(self) -> None:
        if getattr(self, "finite", False):
            for model, _ in self.pairs():
                assert all(bool(torch.isfinite(p).all()) for p in model.parameters())

    @invariant()
    def resumed_equals_uninterrupted(self) -> None:
        if getattr(self, "model", None) is None:
            return
        one, other = (
            [p.detach() for p in model.parameters()] for model, _ in self.pairs()
        )
        assert all(
            torch.equal(a.nan_to_num(), b.nan_to_num())
            for a, b in zip(one, other, strict=True)
        )
        assert self.opt.count == self.twin_opt.count
        repr(self.opt)
        self.opt.log()


ALIKE = {
    "rule": ("law",),
    "law": ("rule",),
    "number": ("given",),
    "given": ("number",),
}


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, to the last bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(
            one.nan_to_num(), other.nan_to_num()
        )
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and set(one) == set(other)
            and all(same(one[k], other[k]) for k in one)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (one != one and other != other)


@st.composite
def damaged_state(draw: st.DrawFn, state: Any) -> tuple[Any, str]:
    """Ours of a state, with something else in it: the text of a group, or what stands with a parameter."""
    state = copy.deepcopy(state)
    where = draw(st.sampled_from(["text", "text", "broken", "state", "groups", "any"]))
    groups = state["param_groups"]
    group = draw(st.sampled_from(groups))
    if where == "text":
        group["tiebreak"] = json.dumps(draw(mangled(json.loads(group["tiebreak"]))))
        for other in groups if draw(st.booleans()) else ():
            other["tiebreak"] = group["tiebreak"]
    elif where == "broken":
        text = group["tiebreak"]
        at = draw(st.integers(0, len(text)))
        group["tiebreak"] = draw(
            st.sampled_from([text[:at], text[:at] + "x" + text[at:], *VALUES])
        )
    elif where == "state" and state["state"]:
        entry = state["state"][draw(st.sampled_from(sorted(state["state"])))]
        ours_there = [name for name in entry if str(name).startswith("tiebreak")]
        name = draw(
            st.sampled_from(
                [*ours_there, "tiebreak", "tiebreak_copy_value", "tiebreak_lower_0"]
            )
        )
        values = [
            torch.zeros(0),
            torch.ones(7),
            torch.ones(1),
            torch.tensor(math.nan),
            torch.ones(3, 3).int(),
        ]
        entry[name] = draw(st.sampled_from([*values, *VALUES]))
    elif where == "groups":
        what = draw(st.sampled_from(["fewer", "more", "none", "params", "odd"]))
        if what == "fewer":
            groups.remove(group)
        elif what == "more":
            groups.append(dict(group))
        elif what == "params":
            group["params"] = draw(
                st.sampled_from([[], [0], list(range(99)), [-1], ["x"], None, 3])
            )
        elif what == "none":
            del group["tiebreak"]
        else:
            state["param_groups"] = draw(st.sampled_from(VALUES))
    else:
        state = draw(mangled(state, st.sampled_from(VALUES)))
    return state, where


_STEPS = 20  # of a life; each is an input


def test_the_life_of_an_optimizer() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small tensors
    try:
        run_state_machine_as_test(
            Life,
            settings=settings(inputs(0.18 / _STEPS, 25), stateful_step_count=_STEPS),
        )
    finally:
        torch.set_num_threads(threads)


# --- batches ----------------------------------------------------------------------------------------------------------


@inputs(0.03, 100)
@given(state=mangled(GrowingBatches(torch.zeros(20, 2), 4).state_dict()))
def test_made_up_states_of_batches(state: Any) -> None:
    """Refused, and nothing has changed; or taken up, and there is a next batch."""
    batches = GrowingBatches(torch.arange(20.0), 4)
    with only_ours() as said:
        batches.load_state_dict(state)
        for part in next(iter(batches)):
            assert len(part) == 2
    if said:
        assert (batches.k, batches.samples) == (0, 0)


# --- logs that are continued ---------------------------------------------------------------------------------------


@inputs(0.03, 80)
@given(data=st.data())
def test_damaged_logs_are_continued_or_refused(
    tmp_path: Path, data: st.DataObject
) -> None:
    """A line is added at the end of a file that is whole up to there, or nothing of it is touched."""
    path = tmp_path / "log.csv"
    path.unlink(missing_ok=True)
    with CSVLog(path) as log:
        log.add(0, lower_loss=2.0)
    content = data.draw(damaged(path.read_bytes()))
    path.write_bytes(content)
    with only_ours() as said:
        with CSVLog(path) as log:
            log.add(1, lower_loss=1.0)
        lines = path.read_bytes().split(b"\n")
        assert lines[-2].startswith(b"1,")
        assert content.startswith(b"\n".join(lines[:-2])) or not content
    if said:
        assert content.startswith(path.read_bytes())


# --- arguments --------------------------------------------------------------------------------------------------------

NAMES = (
    "tolerance",
    "reference",
    "method",
)
NAMES += (
    "normalize",
    "max_norm",
    "nonfinite",
    "fused",
    "generators",
    "model",
    "sharded",
)
GOOD = [
    0.1,
    "2%",
    "twin",
    "start",
    "given",
    "sdbgd",
    "storm_sdbgd",
    "skip",
    simple_method(),
    simple_method("constant", estimator="average"),
]


@inputs(0.06, 150)
@given(
    options=st.dictionaries(
        st.sampled_from(NAMES),
        st.sampled_from([*GOOD, *GOOD, *VALUES, *NUMBERS]),
        max_size=4,
    )
)
def test_arguments(options: dict[str, Any]) -> None:
    """An optimizer or a sentence; and an optimizer that was made can step."""
    x = torch.nn.Parameter(torch.tensor([1.5, 0.5]))
    with warnings.catch_warnings(), only_ours():
        warnings.simplefilter("ignore")
        opt = DynamicBarrier(
            torch.optim.SGD([x], lr=0.01),
            **{"model": torch.nn.ParameterList([x])} | options,
        )
        for _ in range(2):
            opt.step(lower=lambda: x[0].square(), upper=lambda: (x - 1).square().sum())
        assert bool(torch.isfinite(x).all()) or options.get("nonfinite") == "ignore"
