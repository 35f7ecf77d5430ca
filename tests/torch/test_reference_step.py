"""DynamicBarrier makes the same steps as `reference_step`, which is short enough to be checked by reading."""

import copy
import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fuzzing import inputs
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tiebreak import Method, Schedule, methods, rules  # noqa: E402  # after the skip
from tiebreak.decision import Decision, Tolerance  # noqa: E402
from tiebreak.schedules import Power  # noqa: E402
from tiebreak.torch import DynamicBarrier  # noqa: E402
from tiebreak.torch import reference_step as plain  # noqa: E402
from tiebreak.torch.reference_step import Reference, reference_step  # noqa: E402

# The results agree to rounding, not bit for bit: the optimizer sums inner products in another order, multiplies ∇f in
# place before it adds b ∇g, and computes ‖d‖ from inner products. In float32 it also sums inner products in float32.
PRECISION = {torch.float64: 1e-10, torch.float32: 1e-3}
SHAPES = ((), (1,), (4,), (2, 3), (3, 1, 2))
BASES = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05),
    "momentum": lambda params: torch.optim.SGD(
        params, lr=0.02, momentum=0.9, weight_decay=0.01
    ),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.02),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.02, weight_decay=0.1),
}
# With a barrier near 0 both gradients cancel in one dimension, and Adam divides the rounding error that is left by itself.
BARRIERS = st.floats(0.01, 4.0)
REGULARIZERS = st.floats(1e-6, 2.0)
RULES = st.one_of(
    st.builds(methods.sdbgd.replace, barrier=BARRIERS, regularizer=REGULARIZERS),
    st.builds(methods.sdbpg.replace, barrier=BARRIERS, regularizer=REGULARIZERS),
    st.builds(
        methods.pr_sdbpg.replace,
        barrier=BARRIERS,
        regularizer=REGULARIZERS,
        penalty=st.floats(0.1, 10.0),
    ),
    st.builds(methods.dbgd.replace, barrier=BARRIERS),
    st.builds(methods.penalty.replace, barrier=st.floats(0.0, 20.0)),
    st.sampled_from([methods.sdbgd, methods.dbgd, methods.penalty]),
    st.builds(
        lambda barrier, target, rate: Method(
            "least",
            rules.least,
            Schedule(
                barrier=Power(barrier, -0.25),
                regularizer=1e-3,
                others={"target": target, "rate": rate},
            ),
        ),
        BARRIERS,
        st.floats(0.0, 1.0),
        st.floats(0.1, 5.0),
    ),
)


@dataclass(frozen=True)
class Problem:
    """A small model, its losses and the optimizer's arguments; `seed` draws all other numbers.

    Attributes
    ----------
    shapes, dtypes : list
        One for each parameter.
    unreached : (int, int)
        The parameter that f does not reach, and the one that g does not reach; -1 is none.
    method : Method or None
        In place of `tolerance` and `reference`.
    """

    seed: int
    shapes: list[tuple[int, ...]]
    dtypes: list[Any]
    base: str
    method: Method | None = None
    normalize: bool = True
    tolerance: float = 0.1
    relative: bool = False
    reference: str = "twin"
    unreached: tuple[int, int] = (-1, -1)
    max_norm: float | None = None
    steps: int = 12
    nan_step: int = -1
    nan_level: str = "lower"

    @property
    def precision(self) -> float:
        return max(PRECISION[dtype] for dtype in self.dtypes)

    def parameters(self) -> list[Any]:
        generator = torch.Generator().manual_seed(self.seed)
        return [
            torch.randn(shape, generator=generator, dtype=torch.float64)
            .to(dtype)
            .requires_grad_()
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]

    def losses(self, step: int) -> tuple[Any, Any]:
        """f and g of the batch of a step, as functions of the parameters: quadratics with ripples, g > 0."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        skipped_upper, skipped_lower = self.unreached
        size = sum(math.prod(shape) for shape in self.shapes)
        matrix = torch.randn(size, size, generator=generator, dtype=torch.float64)
        center = torch.randn(size, generator=generator, dtype=torch.float64)
        goal = torch.randn(size, generator=generator, dtype=torch.float64)
        batch = torch.Generator().manual_seed(1000 * self.seed + step)
        noise = torch.randn(size, generator=batch, dtype=torch.float64)
        bad = math.nan if step == self.nan_step else 1.0

        def upper(parameters: Any) -> Any:
            x = flat(parameters, skipped_upper)
            loss = (1 + (x - goal).square().sum()).sqrt() + 0.2 * torch.sin(3 * x).sum()
            return loss * (bad if self.nan_level == "upper" else 1.0)

        def lower(parameters: Any) -> Any:
            x = flat(parameters, skipped_lower) - center - 0.1 * noise
            loss = 0.5 + x.square().sum() / 4 + (matrix @ x).square().sum() / (8 * size)
            ripples = 0.1 * (1 - torch.cos(2 * x)).sum()
            return (loss + ripples) * (bad if self.nan_level == "lower" else 1.0)

        return upper, lower

    def curve(self, step: int) -> float:
        return 0.6 + 1.0 / (1 + step)

    def optimizer(self, model: Any) -> DynamicBarrier:
        base = BASES[self.base](list(model))
        options: dict[str, Any] = {"max_norm": self.max_norm, "nonfinite": "skip"}
        if self.method is not None:
            return DynamicBarrier(
                base, method=self.method, normalize=self.normalize, **options
            )
        named = {"number": 0.7, "curve": self.curve}
        tolerance = f"{100 * self.tolerance!r}%" if self.relative else self.tolerance
        return DynamicBarrier(
            base,
            tolerance=tolerance,
            reference=named.get(self.reference, self.reference),
            model=model,
            **options,
        )

    def decision(self) -> Decision:
        if self.method is not None:
            return Decision(self.method, normalize=self.normalize)
        same_batch = self.reference in ("given", "start", "twin")
        amount = float(f"{100 * self.tolerance!r}") / 100
        amount = amount if self.relative else self.tolerance
        return Decision(tolerance=Tolerance(amount, self.relative, same_batch))

    def plain_reference(self, parameters: Any) -> Reference:
        copies = [p.detach().clone().requires_grad_() for p in parameters]
        if self.method is not None:
            return Reference()
        if self.reference == "number":
            return Reference(loss=lambda step: 0.7)
        if self.reference in ("curve", "given"):
            return Reference(loss=self.curve)
        if self.reference == "start":
            return Reference(parameters=copies)
        return Reference(parameters=copies, base=BASES[self.base](copies))


def flat(parameters: Any, unreached: int) -> Any:
    vectors = [
        (p.detach() if i == unreached else p).double().reshape(-1)
        for i, p in enumerate(parameters)
    ]
    return torch.cat(vectors)


@st.composite
def problems(draw: Any, tolerance: bool) -> Problem:
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    single = st.sampled_from([torch.float64, torch.float64, torch.float32])
    dtypes = [draw(single)] * len(shapes)
    if draw(st.integers(0, 7)) == 7:
        dtypes = [draw(single) for _ in shapes]
    level = st.integers(-1, len(shapes) - 1 if len(shapes) > 1 else -1)
    reference = st.sampled_from(["number", "curve", "given", "start", "twin", "twin"])
    problem = Problem(
        seed=draw(st.integers(0, 10**6)),
        shapes=shapes,
        dtypes=dtypes,
        base=draw(st.sampled_from(sorted(BASES))),
        unreached=(draw(level), draw(level)),
        max_norm=draw(st.sampled_from([None, None, 0.3, 1.0])),
        steps=draw(st.integers(5, 30)),
    )
    if not tolerance:
        return replace(problem, method=draw(RULES), normalize=draw(st.booleans()))
    return replace(
        problem,
        tolerance=draw(st.floats(0.01, 0.5)),
        relative=draw(st.booleans()),
        reference=draw(reference),
    )


def compare(problem: Problem, move: Any = None) -> tuple[list[Any], DynamicBarrier]:
    """Make the steps of a problem in both ways; fail unless all numbers agree. Return the plain results.

    `move` changes the parameters before a step, given these and the number of the step.
    """
    parameters = problem.parameters()
    model = torch.nn.ParameterList(copy.deepcopy(parameters))
    opt = problem.optimizer(model)
    base = BASES[problem.base](parameters)
    decision = problem.decision()
    reference = problem.plain_reference(parameters)
    memory = decision.begin()
    results = []
    for step in range(problem.steps):
        for tensors in (parameters, model):
            if move is not None:
                move(tensors, step)
        upper, lower = problem.losses(step)
        result = reference_step(
            parameters,
            upper,
            lower,
            base,
            decision,
            memory,
            step,
            reference,
            problem.max_norm,
        )
        memory = result.memory
        results.append(result)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # advice about the run
            info = optimizer_step(problem, opt, model, upper, lower, step)
        assert_same_numbers(info, result, problem.precision)
        assert_close(list(model), parameters, problem.precision)
        if problem.method is None and problem.reference in ("start", "twin"):
            with torch.no_grad(), opt.reference():
                copies = [p.detach().clone() for p in model]
            assert_close(copies, reference.parameters, problem.precision)
        for optimizer in (opt, base):  # the twin follows its model's learning rate
            optimizer.param_groups[0]["lr"] *= 0.97
    rescues = sum(result.rescued for result in results)
    assert opt.twin_returns == rescues
    return results, opt


def optimizer_step(
    problem: Problem, opt: Any, model: Any, upper: Any, lower: Any, step: int
) -> Any:
    if problem.method is not None or problem.reference != "given":
        return opt.step(upper=lambda: upper(model), lower=lambda: lower(model))
    opt.zero_grad()
    loss = lower(model)
    with opt.lower(loss, reference=problem.curve(step)):
        loss.backward()
    with opt.upper():
        upper(model).backward()
    return opt.step()


def assert_close(actual: Any, expected: Any, precision: float) -> None:
    scale = max(1.0, *(float(p.detach().abs().max()) for p in expected))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(
            one.detach(), other.detach(), rtol=0.0, atol=precision * scale
        )


def assert_same_numbers(info: Any, result: Any, precision: float) -> None:
    assert bool(info.skipped) == (result.choice is None)
    if result.choice is None:
        return
    measurement = result.measurement
    numbers = {
        "multiplier": result.choice.multiplier,
        "lower_loss": measurement.lower_value,
        "upper_loss": result.upper_loss,
        "gg": measurement.gg,
        "ff": measurement.ff,
    }
    reading = result.choice.reading
    if reading is not None:
        numbers |= {
            "reference": reading.reference,
            "excess": reading.excess,
            "ratio": reading.ratio,
        }
    # A difference of large numbers is as exact as these are.
    scales = dict.fromkeys(numbers, 1.0)
    scales["fg"] = math.sqrt(measurement.ff * measurement.gg)
    numbers["fg"] = measurement.fg
    for name, number in numbers.items():
        value = getattr(info, name)
        if name == "upper_loss" and value is None:
            continue  # blocks give no upper loss
        allowance = precision * max(scales[name], abs(number), 1.0)
        assert abs(float(value) - number) <= 10 * allowance, (name, value, number)


@given(problem=problems(tolerance=False))
@inputs(0.05, 50)
def test_a_rule(problem: Problem) -> None:
    compare(problem)


@given(problem=problems(tolerance=True))
@inputs(0.05, 70)
def test_a_tolerance(problem: Problem) -> None:
    compare(problem)


FIXED = Problem(
    seed=3,
    shapes=[(2, 3), (4,), ()],
    dtypes=[torch.float64] * 3,
    base="momentum",
    max_norm=0.3,
)
FOLLOWS_RULE = replace(FIXED, method=methods.sdbgd, max_norm=None)


def without_clipping(reference: Any, base: Any, gradient: Any, max_norm: Any) -> None:
    MOVE_TWIN(reference, base, gradient, None)


def with_its_first_rate(
    reference: Any, base: Any, gradient: Any, max_norm: Any
) -> None:
    MOVE_TWIN(reference, reference.base, gradient, max_norm)


MOVE_TWIN = plain.move_twin
PRODUCT = plain.inner_product
SUM = plain.weighted_sum
MEASURE = plain.measure_reference
MUTATIONS = {
    "products are too large": (
        FOLLOWS_RULE,
        "inner_product",
        lambda u, v: PRODUCT(u, v) * (1 + 1e-8),
    ),
    "weights are swapped": (
        FOLLOWS_RULE,
        "weighted_sum",
        lambda a, u, b, v: SUM(b, u, a, v),
    ),
    "the direction is too short": (
        FOLLOWS_RULE,
        "weighted_sum",
        lambda a, u, b, v: SUM(a * (1 - 1e-8), u, b, v),
    ),
    "the curve is late": (
        replace(FIXED, reference="curve"),
        "measure_reference",
        lambda reference, lower, step: MEASURE(reference, lower, step + 1),
    ),
    "the twin stands still": (FIXED, "move_twin", lambda *arguments: None),
    "the twin is not clipped": (FIXED, "move_twin", without_clipping),
    "the twin keeps its rate": (FIXED, "move_twin", with_its_first_rate),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_step_is_noticed(
    mutation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the two ways differed as much as by one of these errors, the comparison would fail."""
    problem, name, wrong = MUTATIONS[mutation]
    compare(problem)
    monkeypatch.setattr(plain, name, wrong)
    with pytest.raises(AssertionError):
        compare(problem)


OPTIMIZER = Problem.optimizer


@pytest.mark.parametrize(
    ("problem", "wrong"),
    [
        (FOLLOWS_RULE, {"normalize": False}),
        (FOLLOWS_RULE, {"max_norm": 0.2}),
        (FIXED, {"tolerance": 0.1 + 1e-6}),
        (FIXED, {"relative": True}),
        (FIXED, {"reference": "start"}),
    ],
)
def test_a_wrong_argument_is_noticed(
    problem: Problem, wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer is made with other arguments than the plain step."""
    monkeypatch.setattr(
        Problem,
        "optimizer",
        lambda self, model: OPTIMIZER(replace(self, **wrong), model),
    )
    with pytest.raises(AssertionError):
        compare(problem)


@pytest.mark.parametrize("level", ["upper", "lower"])
@pytest.mark.parametrize("how", ["rule", "number", "given", "start", "twin"])
def test_a_loss_that_is_not_finite_skips_the_step(how: str, level: str) -> None:
    """Parameters, twin and memory stay, and the next step is made."""
    problem = replace(FIXED, nan_step=4, nan_level=level)
    if how == "rule":
        problem = replace(problem, method=methods.sdbgd)
    results, opt = compare(replace(problem, reference=how))
    skipped = [step for step, result in enumerate(results) if result.choice is None]
    assert skipped == [4]
    assert results[4].memory == results[3].memory
    assert opt.skipped_steps == 1


class Flat(Problem):
    """The lower loss is flat far from 0, so that no step on g leads back from there."""

    def losses(self, step: int) -> tuple[Any, Any]:
        def upper(parameters: Any) -> Any:
            return (flat(parameters, -1) - 1).square().sum()

        def lower(parameters: Any) -> Any:
            reached = flat(parameters[:2], -1)
            return reached.square().clamp(max=100.0).sum()

        return upper, lower


def move_away(parameters: Any, step: int) -> None:
    if step == 3:
        with torch.no_grad():
            for p in parameters:
                p.fill_(1000.0)


@pytest.mark.parametrize("base", sorted(BASES))
def test_a_model_that_is_lost_is_set_to_its_twin(base: str) -> None:
    """Only the parameters that g reaches, with their optimizer state; both ways agree before and after the rescue."""
    problem = Flat(**vars(replace(FIXED, base=base, max_norm=None, steps=120)))
    results, opt = compare(problem, move_away)
    rescues = [step for step, result in enumerate(results) if result.rescued]
    assert len(rescues) == 1
    assert rescues[0] > 50
    assert opt.twin_returns == 1
    assert results[rescues[0]].choice.reading.excess > 1
    assert results[-1].choice.reading.excess < 1
