"""The structure of tiebreak.torch: parts get values, and a step stays readable from top to bottom."""

import ast
import itertools
import sys
from pathlib import Path

import tiebreak.torch
import torch

MOST_MODULES = 15
MOST_CHANGES = 60
FOLDER = Path(tiebreak.torch.__file__).parent
MODULES = sorted(FOLDER.rglob("*.py"))


def functions(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def arguments(function):
    every = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return [argument for argument in every if argument.arg not in ("self", "cls")]


def annotation(argument):
    return "" if argument.annotation is None else ast.unparse(argument.annotation)


def test_at_most_thirty_modules():
    assert len(MODULES) <= 30


def test_parts_do_not_take_the_optimizer():
    """The checkpoint, the hook of the loggers and torch's gradient scaler need it; everything else gets values."""
    takers = set()
    for path in MODULES:
        for function in functions(path):
            for argument in arguments(function):
                is_optimizer = argument.arg in ("opt", "optimizer")
                if is_optimizer or "DynamicBarrier" in annotation(argument):
                    takers.add((path.name, function.name))
    assert takers == {
        ("checkpoint.py", "save"),
        ("checkpoint.py", "load"),
        ("checkpoint.py", "create_state"),
        ("grad_scaler.py", "inspect_gradients"),
        ("loggers.py", "__call__"),
    }


def test_few_arguments_may_be_anything():
    """At most five percent of the arguments are annotated with a bare Any."""
    every = [
        annotation(argument)
        for path in MODULES
        for function in functions(path)
        for argument in arguments(function)
    ]
    assert every.count("Any") <= 0.05 * len(every)


def test_the_optimizer_is_not_imported_for_its_type():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                assert "optimizer" not in ast.unparse(node).lower(), path


def calls_of_a_step():
    """The modules of tiebreak whose functions one step with a twin calls, in order."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    inputs = torch.randn(8, 4)
    base = torch.optim.AdamW(model.parameters(), lr=1e-3)
    opt = tiebreak.torch.DynamicBarrier(
        base, tolerance=0.1, reference="twin", model=model
    )

    def step():
        opt.step(
            lower=lambda: (model(inputs) - 1).square().mean(),
            upper=lambda: model.weight.abs().sum(),
        )

    for _ in range(3):
        step()
    modules = []

    def profiler(frame, event, _):
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("tiebreak"):
            modules.append(name)

    before = sys.getprofile()
    sys.setprofile(profiler)
    try:
        step()
    finally:
        sys.setprofile(before)
    return modules


def test_a_step_stays_within_few_modules():
    modules = calls_of_a_step()
    changes = sum(a != b for a, b in itertools.pairwise(modules))
    assert len(set(modules)) <= MOST_MODULES
    assert changes <= MOST_CHANGES
