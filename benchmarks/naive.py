"""The peer: the paper's experiment as one would write it first, one run at a time.

It makes as many steps as `tiebreak.minimize`, by the same laws, and draws as many normals for them; STORM's first step
is charged twice here. It selects no iterate, records nothing and checks nothing.

Every method takes the function that draws the mean noise of a batch: `every_sample`, as one would write it first, or
`exact_law`, which tells how much of a difference is the law and how much the loop.
"""

import math

import numpy as np


def upper_gradient(x):
    offset = x - np.array([7.1, 1.0])
    return offset / math.sqrt(1 + offset @ offset)


def lower_gradient(x):
    return np.array([math.sin(x[0]), x[1] * math.exp(-(x[1] ** 2) / 2)])


def every_sample(rng, size):
    """The mean noise of `size` samples."""
    return rng.normal(0.0, 0.5, (size, 2)).mean(axis=0)


def exact_law(rng, size):
    """The same in law, from two normals whatever the size."""
    return rng.normal(0.0, 0.5 / math.sqrt(size), 2)


def sdbgd(budget, rng, batch=every_sample, regularized_numerator=False):
    """SDBGD, or SDBPG with `regularized_numerator`."""
    x, left, steps = np.array([1.5, 1.5]), budget, 0
    while True:
        t = steps + 1
        regularizer = t**-1.0 if regularized_numerator else t**-1.5
        upper_batch, lower_batch = (
            t,
            math.floor(t**2 if regularized_numerator else t**2.5),
        )
        if upper_batch + lower_batch > left:
            return x, steps
        left -= upper_batch + lower_batch
        a, b = (
            upper_gradient(x) + batch(rng, upper_batch),
            lower_gradient(x) + batch(rng, lower_batch),
        )
        barrier = 0.5 * t**-0.25 * (b @ b + regularizer * regularized_numerator)
        x = x - 0.05 * t**-0.25 * (
            a + max(barrier - a @ b, 0.0) / (b @ b + regularizer) * b
        )
        steps += 1


def sdbpg(budget, rng, batch=every_sample):
    return sdbgd(budget, rng, batch, regularized_numerator=True)


def pr_sdbpg(budget, rng, batch=every_sample):
    x, left, steps = np.array([1.5, 1.5]), budget, 0
    while True:
        t = steps + 1
        upper_batch, lower_batch = t, math.floor(t**1.5)
        if upper_batch + lower_batch > left:
            return x, steps
        left -= upper_batch + lower_batch
        a, b = (
            upper_gradient(x) + batch(rng, upper_batch),
            lower_gradient(x) + batch(rng, lower_batch),
        )
        x = x - 0.05 * t**-0.5 * (
            a + max(0.5 * t**0.25 * (b @ b + 1) - a @ b, 0.0) / (b @ b + 1) * b
        )
        steps += 1


def vr_pr_sdbpg(budget, rng, batch=every_sample):
    x, left, steps = np.array([1.5, 1.5]), budget, 0
    previous = a = b = None
    while True:
        t = steps + 1
        upper_batch, lower_batch = math.floor(t**0.5), t
        if 2 * (upper_batch + lower_batch) > left:
            return x, steps
        left -= 2 * (upper_batch + lower_batch)
        upper_noise, lower_noise = batch(rng, upper_batch), batch(rng, lower_batch)
        fresh_a, fresh_b = (
            upper_gradient(x) + upper_noise,
            lower_gradient(x) + lower_noise,
        )
        if previous is None:
            a, b = fresh_a, fresh_b
        else:
            keep = 1 - 0.2 * t**-0.5
            a = fresh_a + keep * (a - upper_gradient(previous) - upper_noise)
            b = fresh_b + keep * (b - lower_gradient(previous) - lower_noise)
        previous = x
        x = x - 0.05 * t**-0.5 * (
            a + max(0.5 * t**0.25 * (b @ b + 1) - a @ b, 0.0) / (b @ b + 1) * b
        )
        steps += 1


METHODS = {
    "sdbgd": sdbgd,
    "sdbpg": sdbpg,
    "pr_sdbpg": pr_sdbpg,
    "vr_pr_sdbpg": vr_pr_sdbpg,
}


def experiment(budget, batch=every_sample):
    """All four methods; the steps that each one made."""
    return {
        name: method(budget, np.random.default_rng(0), batch)[1]
        for name, method in METHODS.items()
    }
