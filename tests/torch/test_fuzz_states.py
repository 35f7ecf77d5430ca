"""Damaged states of an optimizer: refused before anything changes, or accepted and usable.

``TIEBREAK_FUZZ=1500`` tries more of them. What the base itself saves is the base's to check: torch loads a state with a
missing value or another shape.
"""

import copy
import json
import math
import os
import random

import pytest
import torch

from tiebreak import methods
from tiebreak.torch import DynamicBarrier

COUNT = int(os.environ.get("TIEBREAK_FUZZ", "150"))
AVERAGE = methods.sdbgd.replace(
    barrier=0.5, regularizer=1e-6, estimator="average", momentum=0.1
)
KINDS = {
    "twin": {"tolerance": 0.1, "reference": "twin"},
    "start": {"tolerance": "5%", "reference": "start"},
    "number": {"tolerance": 0.1, "reference": 0.3},
    "average": {"method": AVERAGE},
    "rule": {"method": methods.sdbgd.replace(barrier=0.5, regularizer=1e-6)},
}
VALUES = [
    *(None, math.nan, math.inf, -1, 0, 2**70, "x", "", [], {}, True, b"a", 1.5),
    *(torch.tensor(math.nan), torch.zeros(2, 2), torch.zeros(0), torch.tensor([1, 2])),
    *([1, 2], {"a": 1}, "null", "{}", torch.zeros(3, dtype=torch.complex64)),
]


def setup(kind, seed):
    """Four layers, so that every value of the base has others to be compared with."""
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(3, 3) for _ in range(4)]
    model = torch.nn.Sequential(*layers, torch.nn.BatchNorm1d(3))
    if seed % 2:
        base = torch.optim.AdamW(model.parameters(), lr=0.01)
    else:
        base = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    options = dict(KINDS[kind])
    if kind in ("twin", "start"):
        options["model"] = model
    opt = DynamicBarrier(base, **options)
    inputs = torch.randn(8, 3)

    def step():
        return opt.step(
            lower=lambda: (model(inputs) - 1).square().mean(),
            upper=lambda: sum(p.abs().sum() for p in model.parameters()),
        )

    return model, opt, step


def paths(node, prefix=()):
    if prefix:
        yield prefix
    if isinstance(node, dict):
        for key in node:
            yield from paths(node[key], (*prefix, key))
    elif isinstance(node, list):
        for i in range(len(node)):
            yield from paths(node[i], (*prefix, i))


def at(root, path):
    for key in path:
        root = root[key]
    return root


def change(root, draw):
    """Delete, rename, replace or exchange one value somewhere."""
    every = list(paths(root))
    path = draw.choice(every)
    node = at(root, path[:-1])
    key = path[-1]
    action = draw.choice(["delete", "replace", "rename", "exchange"])
    if action == "delete":
        del node[key]
    elif action == "rename" and isinstance(node, dict):
        node[f"{key}_"] = node.pop(key)
    elif action == "exchange":
        node[key] = copy.deepcopy(at(root, draw.choice(every)))
    else:
        node[key] = draw.choice(VALUES)


def damage(state, draw):
    """Return a state with one change: of the text of a group, or of what is saved for a parameter beside the base's."""
    state = copy.deepcopy(state)
    part = draw.choice(["text", "state"])
    own = {}
    for i, values in state["state"].items():
        own[i] = {n: v for n, v in values.items() if str(n).startswith("tiebreak")}
    if part == "state" and any(own.values()):
        change(own, draw)
        for i, values in own.items():
            base = state["state"].get(i, {})
            base = {n: v for n, v in base.items() if not str(n).startswith("tiebreak")}
            state["state"][i] = base | values if isinstance(values, dict) else values
        return state
    group = draw.choice(state["param_groups"])
    text = json.loads(group["tiebreak"])
    change(text, draw)
    group["tiebreak"] = json.dumps(text, default=str)
    return state


def everything(model, opt):
    return copy.deepcopy((model.state_dict(), opt.state_dict()))


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        keys_agree = one.keys() == other.keys()
        return keys_agree and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(COUNT))
def test_a_damaged_state_is_refused_before_any_change_or_usable(seed):
    draw = random.Random(seed)
    kind = draw.choice(list(KINDS))
    _, trained, step = setup(kind, seed)
    for _ in range(3):
        step()
    state = damage(trained.state_dict(), draw)
    model, opt, step = setup(kind, seed)
    for _ in range(draw.choice([0, 2])):
        step()
    before = everything(model, opt)
    try:
        opt.load_state_dict(state)
    except ValueError:
        assert equal(before, everything(model, opt))
    step()
    opt.state_dict()
