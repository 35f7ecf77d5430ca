"""The methods of the study: ours, the baselines by hand, and the peers that are installed.

A method is a function ``build(optimizer, reference, tolerance) → step``, and ``step(upper, lower)`` takes two functions
that return the losses on this step's batch. The base optimizer is the same for all.
"""

import importlib.metadata
import importlib.util

import torch

from tiebreak.torch import DynamicBarrier

WEIGHTS = (1, 3, 10, 30, 100, 300, 1000)
PEERS = {"torchjd": "torchjd", "cooper": "cooper-optim"}


def installed():
    """Distribution → version, of the peers that can be imported."""
    found = {module: importlib.util.find_spec(module) is not None for module in PEERS}
    return {PEERS[m]: importlib.metadata.version(PEERS[m]) for m, there in found.items() if there}


def parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def lower_only():
    """What everybody runs today: the lower loss alone."""

    def build(optimizer, *_):
        def step(_, lower):
            optimizer.zero_grad()
            lower().backward()
            optimizer.step()

        return step

    return build


def weighted(weight, plain=False):
    """(f + w g)/(1 + w): divided, so that a large weight does not lengthen SGD's steps; or `plain`, f + w g."""
    scale = 1 if plain else 1 + weight

    def build(optimizer, *_):
        def step(upper, lower):
            optimizer.zero_grad()
            ((upper() + weight * lower()) / scale).backward()
            optimizer.step()

        return step

    return build


def blur(barrier):
    """BLUR-style: λ = (β gg − fg)/gg without the positive part, so f's help for g is taken away; plain steps."""

    def build(optimizer, *_):
        ps = parameters(optimizer)

        def step(upper, lower):
            b = torch.autograd.grad(lower(), ps)
            a = torch.autograd.grad(upper(), ps, allow_unused=True)
            fg = sum((u * v).sum() for u, v in zip(a, b, strict=True) if u is not None)
            gg = sum(v.square().sum() for v in b)
            multiplier = barrier - fg / (gg + 1e-12)
            for p, u, v in zip(ps, a, b, strict=True):
                p.grad = multiplier * v if u is None else u + multiplier * v
            optimizer.step()

        return step

    return build


def pcd(tau):
    """TorchJD's PCD; its primary objective is our upper loss, τ the share of progress promised to the lower one."""

    def build(optimizer, *_):
        from torchjd.aggregation import PCD
        from torchjd.autojac import backward, jac_to_grad

        aggregator, ps = PCD(tau=tau), parameters(optimizer)

        def step(upper, lower):
            optimizer.zero_grad()
            backward([upper(), lower()])
            jac_to_grad(ps, aggregator)
            optimizer.step()

        return step

    return build


def cooper(dual_lr):
    """Cooper: min f subject to g ≤ reference + tolerance, the multiplier by gradient ascent."""

    def build(optimizer, reference, tolerance):
        import cooper as library

        class Problem(library.ConstrainedMinimizationProblem):
            def __init__(self):
                super().__init__()
                multiplier = library.multipliers.DenseMultiplier(num_constraints=1)
                self.lower = library.Constraint(
                    constraint_type=library.ConstraintType.INEQUALITY,
                    formulation_type=library.formulations.Lagrangian,
                    multiplier=multiplier,
                )

            def compute_cmp_state(self, upper, lower):
                violation = (lower() - reference - tolerance).reshape(1)
                return library.CMPState(
                    loss=upper(), observed_constraints={self.lower: library.ConstraintState(violation=violation)}
                )

        problem = Problem()
        dual = torch.optim.SGD(problem.dual_parameters(), lr=dual_lr, maximize=True)
        rolled = library.optim.SimultaneousOptimizer(problem, optimizer, dual)

        def step(upper, lower):
            rolled.roll(compute_cmp_state_kwargs={"upper": upper, "lower": lower})

        return step

    return build


def ours(known=True, **options):
    """DynamicBarrier; with ``tolerance=True`` the run's tolerance and, where `known`, its reference are filled in."""

    def build(optimizer, reference, tolerance):
        given = dict(options)
        if given.get("tolerance"):
            given |= {"tolerance": tolerance, "reference": reference if known else None}
        wrapped = DynamicBarrier(optimizer, **given)

        def step(upper, lower):
            return wrapped.step(upper=upper, lower=lower)

        return step

    return build


def swapped(build):
    """The same method with the roles exchanged: the upper loss has to stay optimal."""

    def rebuilt(*arguments):
        step = build(*arguments)
        return lambda upper, lower: step(lower, upper)

    return rebuilt


def table():
    """Every method of the study by name."""
    known = {"lower only": lower_only()}
    known |= {f"weight {w}": weighted(w) for w in WEIGHTS}
    known["sum 10, plain steps"] = weighted(10, plain=True)
    if "torchjd" in installed():
        known |= {f"PCD {tau}": pcd(tau) for tau in (0.5, 1.0)}
    known["BLUR-style"] = blur(1.0)
    if "cooper-optim" in installed():
        known |= {f"Cooper {rate}": cooper(rate) for rate in (0.1, 1.0)}
    sdbgd = {"barrier": 10.0, "normalize": True}
    known |= {
        "SDBGD": ours(**sdbgd),
        "SDBGD, average": ours(**sdbgd, estimator="average"),
        "SDBGD, STORM": ours(**sdbgd, estimator="storm"),
        "SDBGD, plain steps": ours(barrier=10.0, normalize=False),
        "SDBGD, swapped": swapped(ours(**sdbgd)),
        "tolerance": ours(tolerance=True),
        "tolerance, no reference": ours(tolerance=True, known=False),
    }
    return known
