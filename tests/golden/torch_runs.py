"""Runs of the torch optimizer, 200 steps each: every reference, rules, estimators, and what training loops do."""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from golden.trace import Trace, structure
from tiebreak import Average, Method, methods
from tiebreak.torch import SDBGD, CSVLog, DynamicBarrier, GrowingBatches

STEPS = 200
RUNS: dict[str, Callable[[Path], Trace]] = {}


def scenario(function: Callable[[Path], Trace]) -> Callable[[Path], Trace]:
    """List a run by the name of its function."""
    RUNS[function.__name__] = function
    return function


def network(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = (
        torch.nn.Linear(6, 12),
        torch.nn.BatchNorm1d(12),
        torch.nn.Tanh(),
        torch.nn.Dropout(0.1),
    )
    return torch.nn.Sequential(*layers, torch.nn.Linear(12, 1)).double()


def batches(
    count: int = STEPS, size: int = 16
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    weights = torch.randn(6, 1, generator=generator, dtype=torch.float64)
    pairs = []
    for _ in range(count):
        inputs = torch.randn(size, 6, generator=generator, dtype=torch.float64)
        noise = torch.randn(size, 1, generator=generator, dtype=torch.float64)
        pairs.append((inputs, torch.sin(inputs @ weights) + 0.1 * noise))
    return pairs


def fit(
    model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def size(model: torch.nn.Module) -> torch.Tensor:
    return sum(p.abs().sum() for p in model.parameters()) / 100


def pretrained() -> torch.nn.Module:
    model = network()
    base = torch.optim.Adam(model.parameters(), lr=0.02)
    for batch in batches(100):
        base.zero_grad()
        fit(model, batch).backward()
        base.step()
    return model


def adam(model: torch.nn.Module, lr: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr)


def cosine(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


def rule(barrier: Any = 0.5, regularizer: Any = 1e-8, **changes: Any) -> Method:
    """The SDBGD rule with these numbers."""
    return methods.sdbgd.replace(barrier=barrier, regularizer=regularizer, **changes)


def closures(opt: DynamicBarrier, model: torch.nn.Module, batch: Any) -> None:
    opt.step(lower=lambda: fit(model, batch), upper=lambda: size(model))


def blocks(
    opt: DynamicBarrier,
    model: torch.nn.Module,
    batch: Any,
    cuts: tuple[slice, ...] = (slice(0, 16),),
) -> None:
    for cut in cuts:
        part = (batch[0][cut], batch[1][cut])
        loss = fit(model, part) * len(part[0]) / 16
        with opt.lower(loss):
            loss.backward()
    upper = size(model)
    with opt.upper(upper):
        upper.backward()
    opt.step()


@contextmanager
def recorded_warnings(trace: Trace, folder: Path) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    lines = [
        f"{w.category.__name__}: {w.message}".replace(str(folder), "FOLDER")
        for w in caught
    ]
    trace.texts["warnings"] = lines


def record(
    folder: Path,
    opt: DynamicBarrier,
    model: torch.nn.Module,
    step: Callable[[DynamicBarrier, torch.nn.Module, Any], None] = closures,
    scheduler: Any = None,
    data: Any = None,
    finish: bool = False,
) -> Trace:
    """Train, and keep what each step and the end of the run say."""
    trace = Trace()
    rows: list[dict[str, float]] = []
    errors: list[str] = []
    torch.manual_seed(1)
    with recorded_warnings(trace, folder):
        log = CSVLog(folder / "log.csv")
        opt.register_step_post_hook(log)
        for k, batch in enumerate(batches() if data is None else data):
            try:
                step(opt, model, batch)
            except FloatingPointError as error:
                errors.append(f"{k}: {error}")
                opt.zero_grad()
            if opt.last is not None:
                values = {n: v for n, v in opt.last._asdict().items() if v is not None}
                rows.append({n: float(v.reshape(-1)[0]) for n, v in values.items()})
            if scheduler is not None:
                scheduler.step()
            if k + 1 == STEPS:
                break
        if finish:
            result = opt.finish(
                lower=lambda: (fit(model, batch) for batch in batches(10)),
                upper=lambda: size(model),
            )
            trace.texts["finish"] = [str(result)]
        log.close()
    names = sorted({name for row in rows for name in row})
    trace.arrays |= {
        f"step/{name}": np.array([row.get(name, np.nan) for row in rows])
        for name in names
    }
    trace.arrays |= {
        f"model/{name}": value.numpy().copy()
        for name, value in model.state_dict().items()
    }
    trace.texts["state"] = structure(opt.state_dict())
    trace.texts["log"] = [f"{name}: {value!r}" for name, value in opt.log().items()]
    trace.texts["csv"] = [
        line.rpartition(",")[0]
        for line in (folder / "log.csv").read_text().splitlines()
    ]
    if errors:
        trace.texts["errors"] = errors
    return trace


@scenario
def number(folder: Path) -> Trace:
    model = network()
    opt = DynamicBarrier(adam(model), tolerance=0.05, reference=0.3)
    return record(folder, opt, model, scheduler=cosine(opt))


@scenario
def share_of_a_number(folder: Path) -> Trace:
    model = network()
    opt = DynamicBarrier(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        tolerance="20%",
        reference=0.3,
    )
    return record(folder, opt, model)


@scenario
def function_of_the_step(folder: Path) -> Trace:
    model = network()
    opt = DynamicBarrier(
        adam(model), tolerance=0.05, reference=lambda k: 0.3 + 0.5 * 0.98**k
    )
    return record(folder, opt, model)


@scenario
def curve(folder: Path) -> Trace:
    alone = network()
    base = adam(alone)
    torch.manual_seed(1)
    with CSVLog(folder / "fit.csv") as log:
        for k, batch in enumerate(batches()):
            base.zero_grad()
            loss = fit(alone, batch)
            loss.backward()
            base.step()
            log.add(k, lower_loss=loss)
    model = network()
    opt = DynamicBarrier(adam(model), tolerance=0.05, reference=folder / "fit.csv")
    return record(folder, opt, model)


@scenario
def start(folder: Path) -> Trace:
    model = pretrained()
    opt = DynamicBarrier(
        adam(model, 0.003), tolerance=0.02, reference="start", model=model
    )
    return record(folder, opt, model, scheduler=cosine(opt), finish=True)


@scenario
def start_constant_rate(folder: Path) -> Trace:
    model = pretrained()
    opt = DynamicBarrier(
        adam(model, 0.02), tolerance=0.02, reference="start", model=model
    )
    return record(folder, opt, model)


@scenario
def twin(folder: Path) -> Trace:
    model = network()
    opt = DynamicBarrier(adam(model), tolerance=0.05, reference="twin", model=model)
    return record(folder, opt, model, scheduler=cosine(opt), finish=True)


@scenario
def twin_share_sgd(folder: Path) -> Trace:
    model = network()
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    opt = DynamicBarrier(base, tolerance="5%", reference="twin", model=model)
    return record(folder, opt, model)


@scenario
def twin_tight(folder: Path) -> Trace:
    """The tolerance is so small that the model is returned to its twin."""
    model = network()
    base = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    opt = DynamicBarrier(base, tolerance=0.001, reference="twin", model=model)
    return record(folder, opt, model, scheduler=cosine(opt))


@scenario
def returned_to_the_twin(folder: Path) -> Trace:
    """The model is moved far away, and its steps are too short to come back."""
    model = network()
    opt = DynamicBarrier(
        torch.optim.SGD(model.parameters(), lr=1e-3),
        tolerance=0.01,
        reference="twin",
        model=model,
    )

    def step(opt: DynamicBarrier, model: torch.nn.Module, batch: Any) -> None:
        if opt.count == 30:
            with torch.no_grad():
                model[4].bias.add_(5.0)
        closures(opt, model, batch)

    return record(folder, opt, model, step)


@scenario
def given(folder: Path) -> Trace:
    model, teacher = network(), pretrained().eval()
    opt = DynamicBarrier(adam(model), tolerance=0.05, reference="given")

    def step(opt: DynamicBarrier, model: torch.nn.Module, batch: Any) -> None:
        with torch.no_grad():
            compared = fit(teacher, batch)
        loss = fit(model, batch)
        with opt.lower(loss, reference=compared):
            loss.backward()
        upper = size(model)
        with opt.upper(upper):
            upper.backward()
        opt.step()

    return record(folder, opt, model, step)


@scenario
def tolerance_changes(folder: Path) -> Trace:
    model = network()
    opt = DynamicBarrier(adam(model), tolerance=0.2, reference="twin", model=model)

    def step(opt: DynamicBarrier, model: torch.nn.Module, batch: Any) -> None:
        if opt.count == 100:
            opt.tolerance = 0.05
        closures(opt, model, batch)

    return record(folder, opt, model, step)


@scenario
def rule_mode(folder: Path) -> Trace:
    model = network()
    return record(folder, DynamicBarrier(adam(model), method=rule()), model)


@scenario
def rule_without_normalizing(folder: Path) -> Trace:
    model = network()
    opt = DynamicBarrier(
        torch.optim.SGD(model.parameters(), lr=0.02),
        method=rule(0.7, 1e-3),
        normalize=False,
    )
    return record(folder, opt, model)


@scenario
def rule_average(folder: Path) -> Trace:
    model = network()
    opt = DynamicBarrier(adam(model), method=rule(estimator="average", momentum=0.1))
    return record(folder, opt, model)


@scenario
def rule_average_in_direction(folder: Path) -> Trace:
    model = network()
    opt = DynamicBarrier(adam(model), method=rule(estimator=Average(0.2)))
    return record(folder, opt, model)


@scenario
def named_method(folder: Path) -> Trace:
    model = network()
    return record(folder, DynamicBarrier(adam(model), method="pr_sdbpg"), model)


@scenario
def sdbgd(folder: Path) -> Trace:
    model = network()
    return record(folder, SDBGD(model.parameters()), model)


@scenario
def sdbgd_rate(folder: Path) -> Trace:
    model = network()
    opt = SDBGD(model.parameters(), lr=0.05, method="sdbpg")
    return record(
        folder, opt, model, scheduler=torch.optim.lr_scheduler.StepLR(opt, 50)
    )


@scenario
def sdbgd_tolerance(folder: Path) -> Trace:
    model = network()
    opt = SDBGD(
        model.parameters(), lr=0.05, tolerance=0.05, reference="twin", model=model
    )
    return record(folder, opt, model)


@scenario
def accumulation(folder: Path) -> Trace:
    model = network()

    def step(opt: DynamicBarrier, model: torch.nn.Module, batch: Any) -> None:
        blocks(opt, model, batch, (slice(0, 7), slice(7, 16)))

    return record(folder, DynamicBarrier(adam(model), method=rule()), model, step)


@scenario
def accumulation_twin(folder: Path) -> Trace:
    model = network()
    opt = DynamicBarrier(adam(model), tolerance=0.05, reference="twin", model=model)

    def step(opt: DynamicBarrier, model: torch.nn.Module, batch: Any) -> None:
        for cut in (slice(0, 7), slice(7, 16)):
            part = (batch[0][cut], batch[1][cut])
            share = len(part[0]) / 16
            with opt.reference():
                compared = fit(model, part) * share
                compared.backward()
            loss = fit(model, part) * share
            with opt.lower(loss, reference=compared):
                loss.backward()
        upper = size(model)
        with opt.upper(upper):
            upper.backward()
        opt.step()

    return record(folder, opt, model, step)


def _scaled(
    opt: DynamicBarrier, model: torch.nn.Module, scaler: Any, twin: bool
) -> Callable[..., None]:
    def step(opt: DynamicBarrier, model: torch.nn.Module, batch: Any) -> None:
        if opt.count in (70, 71):  # an overflow, as in half precision
            batch = (batch[0], batch[1] * float("inf"))
        compared = None
        if twin:
            with opt.reference():
                compared = fit(model, batch)
                scaler.scale(compared).backward()
        loss = fit(model, batch)
        with opt.lower(loss, reference=compared) if twin else opt.lower(loss):
            scaler.scale(loss).backward()
        upper = size(model)
        with opt.upper(upper):
            scaler.scale(upper).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()

    return step


@scenario
def gradient_scaler(folder: Path) -> Trace:
    model = network()
    opt = DynamicBarrier(adam(model), method=rule())
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=20)
    return record(folder, opt, model, _scaled(opt, model, scaler, False))


@scenario
def gradient_scaler_twin(folder: Path) -> Trace:
    model = network()
    opt = DynamicBarrier(adam(model), tolerance=0.05, reference="twin", model=model)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=20)
    return record(folder, opt, model, _scaled(opt, model, scaler, True))


@scenario
def max_norm(folder: Path) -> Trace:
    model = network()
    opt = DynamicBarrier(
        adam(model), tolerance=0.05, reference="twin", model=model, max_norm=0.1
    )
    return record(folder, opt, model)


@scenario
def combined_before_the_step(folder: Path) -> Trace:
    model = network()

    def step(opt: DynamicBarrier, model: torch.nn.Module, batch: Any) -> None:
        loss = fit(model, batch)
        with opt.lower(loss):
            loss.backward()
        upper = size(model)
        with opt.upper(upper):
            upper.backward()
        opt.combine()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()

    return record(
        folder, DynamicBarrier(adam(model), tolerance=0.05, reference=0.3), model, step
    )


@scenario
def two_groups(folder: Path) -> Trace:
    model = network()
    groups = [
        {"params": list(model[0].parameters())},
        {"params": list(model[4].parameters()), "lr": 0.002},
    ]
    groups.append({"params": list(model[1].parameters()), "weight_decay": 0.0})
    opt = DynamicBarrier(
        torch.optim.AdamW(groups, lr=0.01),
        tolerance=0.05,
        reference="twin",
        model=model,
    )
    return record(
        folder,
        opt,
        model,
        scheduler=torch.optim.lr_scheduler.LambdaLR(
            opt, lambda k: min(1, (k + 1) / 20)
        ),
    )


@scenario
def two_groups_sdbgd(folder: Path) -> Trace:
    model = network()
    groups = [
        {"params": list(model[0].parameters())},
        {"params": list(model[4].parameters()), "lr": 0.002},
    ]
    return record(folder, SDBGD(groups, lr=0.05), model)


def spoiled() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of which three have targets that are not numbers."""
    pairs = batches()
    for k in (40, 41, 90):
        pairs[k] = (pairs[k][0], pairs[k][1] * float("nan"))
    return pairs


@scenario
def nonfinite_skip(folder: Path) -> Trace:
    model = network()
    opt = DynamicBarrier(
        adam(model), tolerance=0.05, reference="twin", model=model, nonfinite="skip"
    )
    return record(folder, opt, model, data=spoiled())


@scenario
def nonfinite_skip_rule(folder: Path) -> Trace:
    model = network()
    return record(
        folder,
        DynamicBarrier(adam(model), method=rule(), nonfinite="skip"),
        model,
        data=spoiled(),
    )


@scenario
def nonfinite_raise(folder: Path) -> Trace:
    model = network()
    opt = DynamicBarrier(adam(model), tolerance=0.05, reference=0.3, nonfinite="raise")
    return record(folder, opt, model, data=spoiled())


@scenario
def nonfinite_raise_later(folder: Path) -> Trace:
    """Plain SGD: the device knows that the step is not made, and the next call raises."""
    model = network()
    opt = DynamicBarrier(torch.optim.SGD(model.parameters(), lr=0.02), method=rule())
    return record(folder, opt, model, data=spoiled())


@scenario
def nonfinite_ignore(folder: Path) -> Trace:
    model = network()
    return record(
        folder,
        DynamicBarrier(adam(model), method=rule(), nonfinite="ignore"),
        model,
        data=spoiled(),
    )


@scenario
def growing_batches(folder: Path) -> Trace:
    model = network()
    inputs, targets = (torch.cat(column) for column in zip(*batches(), strict=True))
    growing = GrowingBatches(
        (inputs, targets), lambda k: 4 + k // 4, micro_batch=16, seed=3
    )

    def step(opt: DynamicBarrier, model: torch.nn.Module, batch: Any) -> None:
        for part, weight in batch:
            loss = weight * fit(model, part)
            with opt.lower(loss):
                loss.backward()
        upper = size(model)
        with opt.upper(upper):
            upper.backward()
        opt.step()

    model[1] = (
        torch.nn.Identity()
    )  # the first micro-batches are too small for batch norm
    opt = DynamicBarrier(adam(model), method=rule(methods.sdbgd.schedule.barrier))
    return record(folder, opt, model, step, data=growing)


@scenario
def resumed_twin(folder: Path) -> Trace:
    """Stopped after 100 steps, saved, loaded into a new model and optimizer, and continued."""
    model = network()
    opt = DynamicBarrier(adam(model), tolerance=0.05, reference="twin", model=model)
    data = batches()
    (folder / "first").mkdir()
    record(folder / "first", opt, model, data=data[:100])
    torch.save(
        {"model": model.state_dict(), "opt": opt.state_dict()}, folder / "state.pt"
    )
    saved = torch.load(folder / "state.pt", weights_only=True)
    model = network(5)
    opt = DynamicBarrier(adam(model), tolerance=0.05, reference="twin", model=model)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    return record(folder, opt, model, data=data[100:])


def run(name: str) -> Trace:
    """Run one scenario in an empty folder, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return RUNS[name](Path(folder))
    finally:
        torch.set_num_threads(threads)
