"""Ours, the baselines by hand, and the peers, as a training loop calls them.

A method is a function ``build(optimizer, reference, tolerance) → step``, and ``step(upper, lower)`` takes two functions
that return the losses on this step's batch. The base optimizer is the same for all.
"""

import torch

from gallery.methods import peers
from tiebreak import methods
from tiebreak.torch import DynamicBarrier

METHOD = methods.sdbgd.replace(barrier=1.0, regularizer=1e-8)


def parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


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
        def dual(multipliers):
            return torch.optim.SGD(multipliers, lr=dual_lr, maximize=True)

        return peers.cooper_step(optimizer, dual, reference + tolerance)

    return build


def ours(**options):
    """DynamicBarrier; with ``tolerance=True`` the run's tolerance and, unless it is given, its reference."""

    def build(optimizer, reference, tolerance):
        given = dict(options)
        if given.get("tolerance"):
            given = {"reference": reference} | given | {"tolerance": tolerance}
        else:
            given = {"method": METHOD} | given
        wrapped = DynamicBarrier(optimizer, **given)

        def step(upper, lower):
            return wrapped.step(upper=upper, lower=lower)

        return step

    return build
