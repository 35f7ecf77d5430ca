"""Sparsity without giving up the fit, in JAX
==========================================

Run it: ``python examples/digits_jax.py`` (a minute on a CPU).

A small Equinox network on scikit-learn's digits. The lower loss is cross-entropy; the upper loss is the mean absolute
weight, smoothed. A weighted sum f + c·g needs a c, and every c is another answer. With the barrier you say instead how
much of the fit may be given up, against a twin that is trained on the fit alone. Training is one `lax.scan`, and all
seeds run side by side under `vmap`.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from tiebreak import methods
from tiebreak.optax import dynamic_barrier, measure, with_twin

BATCH, SEEDS, TOLERANCE = 64, 5, 0.02
IMAGES, LABELS = load_digits(return_X_y=True)
TRAIN_X, TEST_X, TRAIN_Y, TEST_Y = (
    jnp.asarray(part)
    for part in train_test_split(IMAGES.astype(np.float32) / 16, LABELS, random_state=0)
)


def init(key):
    """The arrays of an MLP with 64, 64 and 10 units."""
    return eqx.partition(eqx.nn.MLP(64, 10, 64, depth=1, key=key), eqx.is_array)[0]


STATIC = eqx.partition(
    eqx.nn.MLP(64, 10, 64, depth=1, key=jax.random.key(0)), eqx.is_array
)[1]


def logits(params, images):
    return jax.vmap(eqx.combine(params, STATIC))(images)


def fit(params, batch):
    """g, the lower loss: cross-entropy."""
    images, labels = batch
    return optax.softmax_cross_entropy_with_integer_labels(
        logits(params, images), labels
    ).mean()


def size(params, batch):
    """f, the upper loss: the mean absolute weight, smoothed at 0."""
    return jnp.mean(jnp.sqrt(weights(params) ** 2 + 1e-6))


def weights(params):
    return jnp.concatenate([layer.weight.ravel() for layer in params.layers])


def share_left(params):
    """The share of weights that are not about zero."""
    return jnp.mean(jnp.abs(weights(params)) > 1e-2)


def train(optimizer, key, steps):
    """A whole training run: its curves, and the test accuracy at its end."""
    evaluate = measure(size, fit)

    def step(carry, key):
        params, state = carry
        rows = jax.random.randint(key, (BATCH,), 0, len(TRAIN_X))
        grads, measured = evaluate(params, state, (TRAIN_X[rows], TRAIN_Y[rows]))
        updates, state = optimizer.update(grads, state, params, **measured)
        params = optax.apply_updates(params, updates)
        curves = {"loss": measured["lower_value"], "left": share_left(params)}
        curves |= {
            name: optax.tree.get(state, name, 0.0)
            for name in ("multiplier", "excess", "reference")
        }
        return (params, state), curves

    start, draws = jax.random.split(key)
    params = init(start)
    (params, _), curves = jax.lax.scan(
        step, (params, optimizer.init(params)), jax.random.split(draws, steps)
    )
    accuracy = jnp.mean(jnp.argmax(logits(params, TEST_X), axis=1) == TEST_Y)
    return curves | {
        "accuracy": accuracy,
        "train loss": fit(params, (TRAIN_X, TRAIN_Y)),
    }


def optimizers(steps):
    """Weighted sums are the method `penalty` with a constant weight: the same code, another rule."""
    adam = optax.adam(optax.cosine_decay_schedule(3e-3, steps))
    sums = {
        f"f + {c:g} g": optax.chain(
            dynamic_barrier(method=methods.penalty.replace(barrier=c)), adam
        )
        for c in (0.02, 0.2, 2)
    }
    return sums | {f"twin + {TOLERANCE}": with_twin(adam, tolerance=TOLERANCE)}


def smooth(curve, width=50):
    return np.convolve(curve, np.ones(width) / width, mode="valid")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figure", default="digits_jax.png")
    parser.add_argument("--steps", type=int, default=3000)
    options = parser.parse_args()
    keys = jax.random.split(jax.random.key(0), SEEDS)
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    print(f"{SEEDS} seeds, {options.steps} steps of {BATCH} images: means")
    print(
        f"{'optimizer':<18} {'train loss':>10} {'accuracy':>9} {'weights left':>13} {'last λ':>8} {'excess':>7}"
    )
    for (name, optimizer), color in zip(
        optimizers(options.steps).items(),
        ("0.75", "0.55", "0.35", "tab:red"),
        strict=True,
    ):
        found = jax.device_get(
            jax.jit(jax.vmap(lambda key, o=optimizer: train(o, key, options.steps)))(
                keys
            )
        )
        means = [found[n].mean() for n in ("train loss", "accuracy")]
        last = [found[n][:, -100:].mean() for n in ("left", "multiplier", "excess")]
        excess = f"{last[2]:>7.2f}" if name.startswith("twin") else f"{'':>7}"
        print(
            f"{name:<18} {means[0]:>10.3f} {means[1]:>9.1%} {last[0]:>13.1%} {last[1]:>8.2g} {excess}"
        )
        for axis, column in zip(axes, ("loss", "left", "multiplier"), strict=True):
            curve = smooth(found[column].mean(axis=0))
            axis.plot(np.arange(len(curve)) + 50, curve, color=color, label=name)
    limit = smooth(found["reference"].mean(axis=0)) + TOLERANCE
    axes[0].plot(
        np.arange(len(limit)) + 50,
        limit,
        color="tab:red",
        linestyle=":",
        linewidth=1,
        label="its limit",
    )
    titles = ("cross-entropy (lower loss)", "share of weights left", "multiplier λ")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(xlabel="step", title=title)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_yscale("log")
    axes[1].set_ylim(0, 1)
    axes[2].set_yscale("symlog", linthresh=0.01)
    axes[1].legend(frameon=False, fontsize=8)
    figure.savefig(options.figure, dpi=150)


if __name__ == "__main__":
    main()
