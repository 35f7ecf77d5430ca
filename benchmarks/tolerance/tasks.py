"""The tasks: data, a small model, an upper and a lower loss of its parameters on a batch of rows.

Convolutions are written as products with patches: with a set of weights per run, XLA makes one batched product of
them, where a convolution would become hundreds of small ones.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.tolerance import data


class Task(NamedTuple):
    """`upper(parameters, rows)` and `lower(parameters, rows)` on rows of `upper_rows` and `lower_rows`."""

    init: object
    upper: object
    lower: object
    upper_rows: tuple
    lower_rows: tuple


def _dense(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [
        (jax.random.normal(k, (m, n)) * (2 / m) ** 0.5, jnp.zeros(n))
        for k, m, n in pairs
    ]


def mlp(parameters, features):
    *hidden, (matrix, shift) = parameters
    for w, b in hidden:
        features = jax.nn.relu(features @ w + b)
    return features @ matrix + shift


def _images(features):
    side = round(features.shape[1] ** 0.5)
    return features.reshape(-1, side, side, 1)


def _patches(images):
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    h, w = images.shape[1:3]
    return jnp.concatenate(
        [padded[:, i : i + h, j : j + w] for i in range(3) for j in range(3)], -1
    )


def _halved(images):
    """Maxima over squares of two pixels."""
    half = images.shape[1] // 2
    return (
        images[:, : 2 * half, : 2 * half]
        .reshape(len(images), half, 2, half, 2, -1)
        .max((2, 4))
    )


def cnn(parameters, features):
    """Two convolutions of 3 × 3, each with a maximum over squares of two pixels, and a linear layer."""
    *convolutions, (matrix, shift) = parameters
    x = _images(features)
    for w, bias in convolutions:
        x = _halved(jax.nn.relu(_patches(x) @ w + bias))
    return x.reshape(len(x), -1) @ matrix + shift


def cnn_bn(parameters, features):
    """The same with batch normalisation after each convolution, by the statistics of the rows of the call."""
    *convolutions, (matrix, shift) = parameters
    x = _images(features)
    for w, scale, bias in convolutions:
        x = _patches(x) @ w
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        x = _halved(
            jax.nn.relu((x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + bias)
        )
    return x.reshape(len(x), -1) @ matrix + shift


def _cnn_init(key, side, classes, channels=(8, 16), normalised=False):
    one, two, three = jax.random.split(key, 3)
    sizes = (
        (one, 9, channels[0]),
        (two, 9 * channels[0], channels[1]),
        (three, (side // 4) ** 2 * channels[1], classes),
    )
    *convolutions, last = [
        (jax.random.normal(k, (m, n)) * (2 / m) ** 0.5, jnp.zeros(n))
        for k, m, n in sizes
    ]
    if normalised:
        convolutions = [(w, jnp.ones_like(bias), bias) for w, bias in convolutions]
    return [*convolutions, last]


def _normalised(x, scale, shift):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


HEADS = 2


def _attention(block, x):
    """Causal self-attention; `x` is rows × positions × width."""
    rows, length, width = x.shape
    query, key, value = jnp.moveaxis(
        (x @ block["attend"]).reshape(rows, length, 3, HEADS, -1), 2, 0
    )
    scores = jnp.einsum("rqhd,rkhd->rhqk", query, key) * (width // HEADS) ** -0.5
    scores = jnp.where(np.tri(length, dtype=bool), scores, -1e9)
    mixed = jnp.einsum("rhqk,rkhd->rqhd", jax.nn.softmax(scores), value)
    return mixed.reshape(rows, length, width) @ block["mix"]


def transformer(parameters, letters):
    """Logits of the next letter at every position, with layer normalisation before each part of a block."""
    table = parameters["table"]
    x = jax.nn.one_hot(letters, len(table)) @ table + parameters["positions"]
    for block in parameters["blocks"]:
        x = x + _attention(block, _normalised(x, *block["before attention"]))
        x = x + mlp(block["mlp"], _normalised(x, *block["before the mlp"]))
    matrix, shift = parameters["last"]
    return _normalised(x, *parameters["before the last"]) @ matrix + shift


def _transformer_init(key, count, length, width=32, layers=2):
    first, second, last, *keys = jax.random.split(key, 3 + layers)

    def norm():
        return jnp.ones(width), jnp.zeros(width)

    def block(key):
        one, two, three = jax.random.split(key, 3)
        return {
            "before attention": norm(),
            "attend": jax.random.normal(one, (width, 3 * width)) * width**-0.5,
            "mix": jax.random.normal(two, (width, width))
            * (2 * layers * width) ** -0.5,
            "before the mlp": norm(),
            "mlp": _dense(three, (width, 4 * width, width)),
        }

    return {
        "table": 0.3 * jax.random.normal(first, (count, width)),
        "positions": 0.3 * jax.random.normal(second, (length, width)),
        "blocks": [block(k) for k in keys],
        "before the last": norm(),
        "last": (
            jax.random.normal(last, (width, count)) * width**-0.5,
            jnp.zeros(count),
        ),
    }


def entropy(logits, labels):
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def uniform(logits):
    """The divergence of the predictions from the uniform distribution."""
    return jnp.mean(jax.nn.logsumexp(logits, -1) - logits.mean(-1)) - np.log(
        logits.shape[-1]
    )


def _classification(name, model="mlp", hidden=64, classes=None):
    """Features, labels, a model, a function that initialises it, and cross-entropy."""
    features, labels, _ = data.load(name)
    labels, width = labels.astype(np.int32), features.shape[1]
    classes = classes or max(10, int(labels.max()) + 1)
    apply = {"mlp": mlp, "cnn": cnn, "cnn-bn": cnn_bn}[model]

    def init(key):
        if model == "mlp":
            return _dense(key, (width, hidden, classes))
        return _cnn_init(key, round(width**0.5), classes, normalised=model == "cnn-bn")

    return (
        features,
        labels,
        apply,
        init,
        lambda parameters, rows: entropy(apply(parameters, rows[0]), rows[1]),
    )


def fairness(name, hidden):
    """Upper: the squared gap between the mean probabilities of two groups. Lower: the logistic loss."""
    features, labels, group = data.load(name)
    rows = (features, labels.astype(np.float32), group.astype(np.float32))

    def upper(parameters, rows):
        probability = jax.nn.sigmoid(mlp(parameters, rows[0])[:, 0])
        inside, outside = rows[2], 1 - rows[2]
        gap = (probability * inside).sum() / (inside.sum() + 1) - (
            probability * outside
        ).sum() / (outside.sum() + 1)
        return gap**2

    def lower(parameters, rows):
        score = mlp(parameters, rows[0])[:, 0]
        return jnp.mean(jax.nn.softplus(score) - score * rows[1])

    sizes = (features.shape[1], *hidden, 1)
    return Task(lambda key: _dense(key, sizes), upper, lower, rows, rows)


def forgetting(name, forgotten, model="mlp"):
    """Upper: the divergence from uniform predictions on a class (or on some rows). Lower: the loss on the rest."""
    features, labels, apply, init, loss = _classification(name, model)
    if isinstance(forgotten, str):  # "200 rows"
        gone = np.zeros(len(labels), bool)
        gone[
            np.random.default_rng(0).choice(
                len(labels), int(forgotten.split()[0]), replace=False
            )
        ] = True
    else:
        gone = labels == forgotten
    return Task(
        init,
        lambda p, rows: uniform(apply(p, rows[0])),
        loss,
        (features[gone], labels[gone]),
        (features[~gone], labels[~gone]),
    )


def sparsity(name, model="mlp", penalty="smooth"):
    """Upper: the ℓ1 norm of the weights ("l1") or a smoothed one. Lower: cross-entropy."""
    features, labels, _, init, loss = _classification(name, model)
    rows = (features, labels)

    def upper(parameters, rows):
        leaves = jax.tree.leaves(parameters)
        if penalty == "l1":
            return sum(jnp.abs(x).sum() for x in leaves) / 100
        return sum(jnp.sqrt(x**2 + 1e-6).sum() for x in leaves) / 100

    return Task(init, upper, loss, rows, rows)


def continual(name):
    """Upper: the loss on classes from 5 on. Lower: the loss on classes 0 to 4, learnt before, which must stay."""
    features, labels, _, init, loss = _classification(name)
    old = labels < 5
    return Task(
        init, loss, loss, (features[~old], labels[~old]), (features[old], labels[old])
    )


def language(name, hidden=64, width=8, context=8):
    """Upper: the loss on the next letter of another author. Lower: on that of the first, learnt before or not."""
    letters, following, author = data.load(name)
    letters, count = letters[:, -context:], len(data.LETTERS)

    def init(key):
        one, two = jax.random.split(key)
        return [
            jax.random.normal(one, (count, width)),
            *_dense(two, (width * context, hidden, count)),
        ]

    def loss(parameters, rows):
        table, *layers = parameters
        vectors = (
            jax.nn.one_hot(rows[0], count) @ table
        )  # a product, as with the patches
        return entropy(mlp(layers, vectors.reshape(len(rows[0]), -1)), rows[1])

    first = author == 0
    return Task(
        init,
        loss,
        loss,
        (letters[~first], following[~first]),
        (letters[first], following[first]),
    )


def attention(name, count=3000):
    """The same with a transformer, which predicts the letter after every position of `count` and of half as many rows.

    The rows are few because the losses on all of them are measured for every run.
    """
    letters, following, author = data.load(name)
    targets = np.concatenate([letters[:, 1:], following[:, None]], 1).astype(np.int32)
    first, second = (
        np.flatnonzero(author == 0)[:count],
        np.flatnonzero(author == 1)[: count // 2],
    )

    def loss(parameters, rows):
        return entropy(transformer(parameters, rows[0]), rows[1])

    def init(key):
        return _transformer_init(key, len(data.LETTERS), letters.shape[1])

    return Task(
        init,
        loss,
        loss,
        (letters[second], targets[second]),
        (letters[first], targets[first]),
    )


def confidence(name, hidden=64):
    """Upper: the mean square of the logits, a plain remedy for overconfidence. Lower: cross-entropy."""
    classes = int(data.load(name)[1].max()) + 1
    features, labels, apply, init, loss = _classification(
        name, hidden=hidden, classes=classes
    )
    rows = (features, labels)
    return Task(
        init, lambda p, rows: jnp.mean(apply(p, rows[0]) ** 2), loss, rows, rows
    )


def robustness(name, noise=0.3):
    """Upper: cross-entropy with noise on the features (a fixed draw for each row). Lower: without."""
    features, labels, _, init, loss = _classification(name)
    shaken = features + noise * np.random.default_rng(0).standard_normal(
        features.shape
    ).astype(np.float32)
    return Task(init, loss, loss, (shaken, labels), (features, labels))


def smallest(name, count=400):
    """Upper: the mean square of the coefficients. Lower: squared error on random features."""
    features, labels, _ = data.load(name)
    generator = np.random.default_rng(0)
    matrix = (
        generator.standard_normal((features.shape[1], count)) / features.shape[1] ** 0.5
    )
    lifted = (
        np.maximum(features @ np.sort(matrix, 1) + np.linspace(-2, 2, count), 0)
        / count**0.5
    )
    rows = (lifted.astype(np.float32), labels.astype(np.float32))
    return Task(
        lambda key: jax.random.normal(key, (count,)),
        lambda p, rows: jnp.mean(p**2),
        lambda p, rows: jnp.mean((rows[0] @ p - rows[1]) ** 2),
        rows,
        rows,
    )


#: Every task by name: those of `settings.TUNE` (and `QUICK`), then of `HEADROOM`, then of `JUDGE`.
TASKS = {
    "forget a class, digits": lambda: forgetting("digits", 9),
    "smallest, diabetes": lambda: smallest("diabetes"),
    "confidence, cancer": lambda: confidence("cancer", 16),
    "confidence, wine": lambda: confidence("wine", 16),
    "fairness, Adult": lambda: fairness("adult", (32,)),
    "fairness, COMPAS": lambda: fairness("compas", (32,)),
    "forget a class, pen strokes": lambda: forgetting("penbased", 3),
    "forget 200 rows, letters": lambda: forgetting("letter", "200 rows"),
    "forget 200 images, Fashion-MNIST, CNN with batch norm": lambda: forgetting(
        "fashion", "200 rows", "cnn-bn"
    ),
    "sparsity, MNIST, CNN": lambda: sparsity("mnist", "cnn"),
    "l1 sparsity, satellite": lambda: sparsity("satimage", penalty="l1"),
    "continual, textures": lambda: continual("texture"),
    "robustness, segments": lambda: robustness("segment"),
    "confidence, phonemes": lambda: confidence("phoneme", 32),
    "Milton after Shakespeare, MLP": lambda: language("text"),
    "Milton after Shakespeare, transformer": lambda: attention("text"),
    "fairness, savings": lambda: fairness("savings", (32,)),
    "fairness, borrowers": lambda: fairness("borrowers", (16,)),
    "fairness, visits": lambda: fairness("visits", (32,)),
    "fairness, arrests": lambda: fairness("arrests", (16,)),
    "fairness, young women": lambda: fairness("young_women", (32,)),
    "forget 200 rows, subscribers": lambda: forgetting("subscribers", "200 rows"),
    "sparsity, loans": lambda: sparsity("loans"),
    "confidence, lectures": lambda: confidence("lectures", 32),
    "robustness, proteins": lambda: robustness("proteins"),
    "romances after tragedies, letters": lambda: language("romances"),
    "spam after mail, letters": lambda: language("mail"),
    "fairness, earnings": lambda: fairness("earnings", (32,)),
    "fairness, insured": lambda: fairness("insured", (16, 16)),
    "fairness, pupils": lambda: fairness("pupils", (16,)),
    "forget a class, months": lambda: forgetting("months", 6),
    "forget 200 images, glyphs, CNN with batch norm": lambda: forgetting(
        "glyphs", "200 rows", "cnn-bn"
    ),
    "forget 200 images, pictures, CNN": lambda: forgetting(
        "pictures", "200 rows", "cnn"
    ),
    "sparsity, pictures, CNN with batch norm": lambda: sparsity("pictures", "cnn-bn"),
    "l1 sparsity, glyphs": lambda: sparsity("glyphs", penalty="l1"),
    "continual, months": lambda: continual("months"),
    "robustness, voters": lambda: robustness("voters"),
    "confidence, voters": lambda: confidence("voters", 32),
    "smallest, deliveries": lambda: smallest("deliveries"),
    "German after English manual pages, MLP": lambda: language("manpages"),
    "fortunes after the Bible, transformer": lambda: attention("bible"),
}


@functools.cache
def named(name):
    """A task; the same one for the same name, so that what was compiled for it serves again."""
    return TASKS[name]()
