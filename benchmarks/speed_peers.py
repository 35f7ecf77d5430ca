"""The methods of the training-step benchmark: the reference, ours, the same by hand, and the peers.

A method in PyTorch is a function ``build(model, optimizer) → step``, and ``step(upper, lower)`` takes two functions
that return the losses. A task gives the model and the two losses; see `training.py`. Every method gets a model of its
own, with the same start, batches and base optimizer. Every peer is used as its documentation has it, the faster way
where there are two.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import torch_peers
from gallery.methods import peers
from tiebreak.torch import SDBGD, DynamicBarrier

os.environ.setdefault(
    "XLA_PYTHON_CLIENT_PREALLOCATE", "false"
)  # or JAX takes the GPU's memory from PyTorch

BASES = {"SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW}
REFERENCE = "two backward passes + base, nothing else"
# A goal for the methods that need one: g at most reference + tolerance. No figure here depends on it.
GOAL, ALLOWED = 2.0, 0.1
DISTRIBUTIONS = (
    "torchjd",
    "quadprog",
    "cooper-optim",
    "humancompatible-train",
    "torchopt",
    "optax",
    "jax",
)


class Run(NamedTuple):
    """A method at work: `step()` makes one step, `parameters()` copies what they are now, as NumPy arrays."""

    step: Callable[[], Any]
    parameters: Callable[[], list]


class Method(NamedTuple):
    """`apart`: the two gradients are kept apart, so that the multiplier may depend on them."""

    name: str
    apart: bool
    start: Callable[..., Run]  # start(task, base, lr)
    needs: tuple[str, ...] = ()
    jax: bool = False

    def missing(self):
        """The modules that are not installed."""
        return [
            module for module in self.needs if importlib.util.find_spec(module) is None
        ]


def versions():
    """Distribution → version, of the peers that are installed."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


# --- PyTorch -------------------------------------------------------------------------------------------------------


def torch_run(build):
    """`build` around a fresh model and a fresh base optimizer."""

    def start(task, base="SGD", lr=1e-3):
        model = task.model()
        with torch.device(
            task.device
        ):  # multipliers of the peers belong where the losses are
            step = build(model, BASES[base](model.parameters(), lr=lr))
        upper, lower = task.losses(model)
        return Run(
            lambda: step(upper, lower),
            lambda: [p.detach().cpu().numpy().copy() for p in model.parameters()],
        )

    return start


def shared(build):
    """A method of the study, whose functions take no model but the goal."""
    return torch_run(lambda _, optimizer: build(optimizer, GOAL, ALLOWED))


def two_backwards(_, optimizer):
    def step(upper, lower):
        optimizer.zero_grad()
        lower().backward()
        upper().backward()
        optimizer.step()

    return step


def by_hand(_, optimizer):
    """DBGD the obvious way; β = 1."""
    ps = torch_peers.parameters(optimizer)

    def step(upper, lower):
        b = torch.autograd.grad(lower(), ps)
        a = torch.autograd.grad(upper(), ps)
        fg = sum((u * v).sum() for u, v in zip(a, b, strict=True))
        gg = sum((v * v).sum() for v in b)
        multiplier = ((gg - fg) / (gg + 1e-12)).clamp(min=0)
        for p, u, v in zip(ps, a, b, strict=True):
            p.grad = u + multiplier * v
        optimizer.step()

    return step


def blur(_, optimizer):
    """The loop of BLUR's training code: copies of both gradients, and numbers in Python, parameter by parameter."""
    ps = torch_peers.parameters(optimizer)

    def step(upper, lower):
        optimizer.zero_grad()
        lower().backward()
        b = [p.grad.detach().clone() for p in ps]
        optimizer.zero_grad()
        upper().backward()
        a = [p.grad.detach().clone() for p in ps]
        fg = gg = 0.0
        for u, v in zip(a, b, strict=True):
            fg += (u * v).sum().item()
            gg += (v * v).sum().item()
        for p, u, v in zip(ps, a, b, strict=True):
            p.grad = u + (1 - fg / gg) * v
        optimizer.step()

    return step


def torchjd(aggregator):
    """TorchJD without vmap and without the joined Jacobian: its two documented ways to save memory, here faster too."""

    return lambda _, optimizer: peers.torchjd_step(aggregator(), optimizer)


def pcd():
    from torchjd.aggregation import PCD

    return PCD(tau=1.0)


def upgrad():
    from torchjd.aggregation import UPGrad

    return UPGrad()


def dbgd_weighting():
    """Exact DBGD for TorchJD: a weighting of the Gramian, upper loss first; β = 1."""
    from torchjd.aggregation import GramianWeightedAggregator, Weighting

    class DBGDWeighting(Weighting):
        def forward(self, gramian, /):
            fg, gg = gramian[0, 1], gramian[1, 1]
            multiplier = ((gg - fg) / (gg + 1e-12)).clamp(min=0)
            return torch.stack([torch.ones_like(multiplier), multiplier])

    return GramianWeightedAggregator(DBGDWeighting())


def augmented_lagrangian(_, optimizer):
    """humancompatible-train: min f subject to g ≤ goal."""
    from humancompatible.train.dual_optim import ALM

    dual = ALM(m=1, lr=0.01, penalty=1.0, is_ineq=True)

    def step(upper, lower):
        optimizer.zero_grad()
        dual.forward_update(upper(), (lower() - GOAL - ALLOWED).reshape(1)).backward()
        optimizer.step()

    return step


def meta_sgd(model, optimizer):
    """torchopt: the upper loss after one differentiable step on the lower one, and the gradient through that step."""
    import torchopt

    inner = torchopt.MetaSGD(model, lr=1e-3)

    def step(upper, lower):
        before = torchopt.extract_state_dict(model, by="reference")
        optimizer.zero_grad()
        with sdpa_kernel(
            SDPBackend.MATH
        ):  # the fast attention kernels have no second derivative
            inner.step(lower())
            upper().backward()
        torchopt.recover_state_dict(model, before)
        optimizer.step()

    return step


def ours(**options):
    """DynamicBarrier by its public interface: closures."""
    return torch_run(
        lambda model, base: torch_peers.ours(model=model, **options)(
            base, GOAL, ALLOWED
        )
    )


def ours_sdbgd(**options):
    """The class SDBGD, which brings its own SGD."""

    def build(model, optimizer):
        own = SDBGD(model.parameters(), lr=optimizer.param_groups[0]["lr"], **options)
        return lambda upper, lower: own.step(upper=upper, lower=lower)

    return torch_run(build)


# --- JAX: the same multilayer perceptron, from the same start ------------------------------------------------------


def jax_run(kind, **options):
    """`kind`: "sum", "hand" or "tiebreak"; the step is one jitted function that reuses its buffers."""

    def start(task, base="SGD", lr=1e-3):
        import jax
        import optax

        device = jax.devices("gpu" if task.device == "cuda" else "cpu")[0]
        linear = [module for module in task.model() if hasattr(module, "weight")]
        params = [
            (m.weight.detach().cpu().numpy().T.copy(), m.bias.detach().cpu().numpy())
            for m in linear
        ]
        upper, lower = (
            [array.cpu().numpy() for array in batch] for batch in task.batches
        )
        params, upper, lower = jax.device_put((params, upper, lower), device)

        def layer(
            inputs, weight, bias
        ):  # "highest" is plain float32, as in PyTorch: a GPU would take TF32 otherwise
            return jax.numpy.matmul(inputs, weight, precision="highest") + bias

        def loss(params, inputs, labels):
            for pair in params[:-1]:
                inputs = jax.nn.relu(layer(inputs, *pair))
            logits = layer(inputs, *params[-1])
            return optax.softmax_cross_entropy_with_integer_labels(
                logits, labels
            ).mean()

        optimizer, direction = jax_direction(kind, loss, options)
        rest = {"SGD": optax.sgd, "AdamW": optax.adamw}[base](lr)
        optimizer = rest if optimizer is None else optax.chain(optimizer, rest)

        def update(params, state, upper, lower):
            grads, extra = direction(params, upper, lower)
            updates, state = optimizer.update(grads, state, params, **extra)
            return optax.apply_updates(params, updates), state

        compiled = jax.jit(update, donate_argnums=(0, 1))
        now = [params, optimizer.init(params)]

        def step():
            now[:] = compiled(*now, upper, lower)
            jax.block_until_ready(now)

        return Run(step, lambda: [np.array(leaf).T for pair in now[0] for leaf in pair])

    return start


def jax_direction(kind, loss, options):
    """A transformation or None, and ``direction(params, upper, lower) → (gradients, arguments of update)``."""
    import jax
    import optax

    if kind == "sum":
        return None, lambda params, u, l: (
            jax.grad(lambda p: loss(p, *u) + loss(p, *l))(params),
            {},
        )
    if kind == "tiebreak":
        import tiebreak.optax

        def two(params, upper, lower):
            g, dg = jax.value_and_grad(loss)(params, *lower)
            return jax.grad(loss)(params, *upper), {"lower_grads": dg, "lower_value": g}

        return tiebreak.optax.dynamic_barrier(**options), two

    def hand(params, upper, lower):
        df, dg = jax.grad(loss)(params, *upper), jax.grad(loss)(params, *lower)
        fg, gg = optax.tree.vdot(df, dg), optax.tree.vdot(dg, dg)
        multiplier = jax.numpy.maximum((gg - fg) / (gg + 1e-12), 0)
        return jax.tree.map(lambda a, b: a + multiplier * b, df, dg), {}

    return None, hand


# --- all of them ---------------------------------------------------------------------------------------------------

OURS = [
    Method("ours: SDBGD", True, ours_sdbgd()),
    Method("ours: DynamicBarrier", True, ours()),
    Method("ours: DynamicBarrier, tolerance", True, ours(tolerance=True)),
    Method(
        "ours: DynamicBarrier, tolerance, start",
        True,
        ours(tolerance=True, reference="start"),
    ),
    Method(
        "ours: DynamicBarrier, tolerance, twin",
        True,
        ours(tolerance=True, reference="twin"),
    ),
]
METHODS = [
    Method(REFERENCE, False, torch_run(two_backwards)),
    Method(
        "weighted sum, one backward pass",
        False,
        shared(torch_peers.weighted(1, plain=True)),
    ),
    *OURS,
    Method("DBGD by hand", True, torch_run(by_hand)),
    Method("BLUR-style loop", True, torch_run(blur)),
    Method(
        "TorchJD PCD, default call", True, shared(torch_peers.pcd(1.0)), ("torchjd",)
    ),
    Method("TorchJD PCD", True, torch_run(torchjd(pcd)), ("torchjd",)),
    Method(
        "TorchJD UPGrad",
        True,
        torch_run(torchjd(upgrad)),
        ("torchjd", "qpsolvers", "quadprog"),
    ),
    Method(
        "TorchJD, DBGD weighting",
        True,
        torch_run(torchjd(dbgd_weighting)),
        ("torchjd",),
    ),
    Method("Cooper, Lagrangian", False, shared(torch_peers.cooper(0.1)), ("cooper",)),
    Method(
        "humancompatible-train, ALM",
        False,
        torch_run(augmented_lagrangian),
        ("humancompatible",),
    ),
    Method(
        "torchopt MetaSGD, hypergradient", False, torch_run(meta_sgd), ("torchopt",)
    ),
    Method("optax, weighted sum", False, jax_run("sum"), ("jax", "optax"), jax=True),
    Method(
        "optax + tiebreak.optax",
        True,
        jax_run("tiebreak", method=torch_peers.METHOD),
        ("jax", "optax"),
        jax=True,
    ),
    Method("optax, DBGD by hand", True, jax_run("hand"), ("jax", "optax"), jax=True),
]


def check(task, accuracy=1e-5):
    """One step of DBGD by hand, of ours, of TorchJD's and of optax's must be the same step; raises where it is not.

    Parameters
    ----------
    task : object
        A small multilayer perceptron in float32.
    accuracy : float
        Allowed difference, as a share of the largest change of a parameter.
    """
    exact = {
        "method": torch_peers.METHOD.replace(regularizer=1e-12),
        "normalize": False,
    }
    same = [
        Method(
            "DynamicBarrier",
            True,
            torch_run(lambda _, o: _closures(DynamicBarrier(o, **exact))),
        ),
        Method("SDBGD", True, ours_sdbgd(**exact)),
        *(
            method
            for method in METHODS
            if method.name in ("TorchJD, DBGD weighting", "optax, DBGD by hand")
        ),
        Method(
            "tiebreak.optax",
            True,
            jax_run("tiebreak", **exact),
            ("jax", "optax"),
            jax=True,
        ),
    ]

    def after(start):
        run = start(
            task, "SGD", 1.0
        )  # a step of length 1: its rounding is small beside it
        before = run.parameters()
        run.step()
        return [now - then for now, then in zip(run.parameters(), before, strict=True)]

    expected = after(torch_run(by_hand))
    largest = max(np.abs(array).max() for array in expected)
    if not largest > 0:
        raise AssertionError(
            "DBGD by hand did not move the parameters: the check would check nothing"
        )
    checked = []
    for method in same:
        if method.missing() or (method.jax and task.without_jax()):
            continue
        found = after(method.start)
        error = (
            max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True))
            / largest
        )
        if not error <= accuracy:
            raise AssertionError(
                f"{method.name}: its step differs from DBGD by hand by {error:.1e} of the step"
            )
        checked.append(method.name)
    return checked


def _closures(optimizer):
    return lambda upper, lower: optimizer.step(upper=upper, lower=lower)
