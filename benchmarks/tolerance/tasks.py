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
    return [(jax.random.normal(k, (m, n)) * (2 / m) ** 0.5, jnp.zeros(n)) for k, m, n in pairs]


def mlp(parameters, features):
    *hidden, (matrix, shift) = parameters
    for w, b in hidden:
        features = jax.nn.relu(features @ w + b)
    return features @ matrix + shift


def _patches(images):
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    h, w = images.shape[1:3]
    return jnp.concatenate([padded[:, i : i + h, j : j + w] for i in range(3) for j in range(3)], -1)


def cnn(parameters, features):
    """Two convolutions of 3 × 3, each with a maximum over squares of two pixels, and a linear layer."""
    (first, a), (second, b), (matrix, shift) = parameters
    side = round(features.shape[1] ** 0.5)
    x = features.reshape(-1, side, side, 1)
    for w, bias in ((first, a), (second, b)):
        x = jax.nn.relu(_patches(x) @ w + bias)
        half = x.shape[1] // 2
        x = x[:, : 2 * half, : 2 * half].reshape(len(x), half, 2, half, 2, -1).max((2, 4))
    return x.reshape(len(x), -1) @ matrix + shift


def _cnn_init(key, side, classes=10, channels=(8, 16)):
    one, two, three = jax.random.split(key, 3)
    sizes = (
        (one, 9, channels[0]),
        (two, 9 * channels[0], channels[1]),
        (three, (side // 4) ** 2 * channels[1], classes),
    )
    return [(jax.random.normal(k, (m, n)) * (2 / m) ** 0.5, jnp.zeros(n)) for k, m, n in sizes]


def entropy(logits, labels):
    picked = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def uniform(logits):
    """The divergence of the predictions from the uniform distribution."""
    return jnp.mean(jax.nn.logsumexp(logits, -1) - logits.mean(-1)) - np.log(logits.shape[-1])


def _logistic(model, parameters, rows):
    score = model(parameters, rows[0])[:, 0]
    return jnp.mean(jax.nn.softplus(score) - score * rows[1])


def fairness(name, hidden):
    """Upper: the squared gap between the mean probabilities of two groups. Lower: the logistic loss."""
    features, labels, group = data.load(name)
    rows = (features, labels.astype(np.float32), group.astype(np.float32))

    def upper(parameters, rows):
        probability = jax.nn.sigmoid(mlp(parameters, rows[0])[:, 0])
        inside, outside = rows[2], 1 - rows[2]
        gap = (probability * inside).sum() / (inside.sum() + 1) - (probability * outside).sum() / (outside.sum() + 1)
        return gap**2

    sizes = (features.shape[1], *hidden, 1)
    return Task(lambda key: _dense(key, sizes), upper, functools.partial(_logistic, mlp), rows, rows)


def forgetting(name, forgotten, model="mlp", hidden=64):
    """Upper: the divergence from uniform predictions on a class (or on some rows). Lower: the loss on the rest."""
    features, labels, _ = data.load(name)
    labels = labels.astype(np.int32)
    if isinstance(forgotten, str):  # "200 rows"
        gone = np.zeros(len(labels), bool)
        gone[np.random.default_rng(0).choice(len(labels), int(forgotten.split()[0]), replace=False)] = True
    else:
        gone = labels == forgotten
    apply, init = _classifier(model, features.shape[1], hidden, max(10, int(labels.max()) + 1))
    return Task(
        init,
        lambda p, rows: uniform(apply(p, rows[0])),
        lambda p, rows: entropy(apply(p, rows[0]), rows[1]),
        (features[gone], labels[gone]),
        (features[~gone], labels[~gone]),
    )


def _classifier(model, width, hidden, classes=10):
    if model == "cnn":
        return cnn, lambda key: _cnn_init(key, round(width**0.5))
    return mlp, lambda key: _dense(key, (width, hidden, classes))


def sparsity(name, model="mlp", hidden=64):
    """Upper: a smoothed ℓ1 norm of the weights. Lower: cross-entropy."""
    features, labels, _ = data.load(name)
    rows = (features, labels.astype(np.int32))
    apply, init = _classifier(model, features.shape[1], hidden)

    def upper(parameters, rows):
        return sum(jnp.sqrt(x**2 + 1e-6).sum() for x in jax.tree.leaves(parameters)) / 100

    return Task(init, upper, lambda p, rows: entropy(apply(p, rows[0]), rows[1]), rows, rows)


def continual(name, hidden=64):
    """Upper: the loss on classes 5 to 9. Lower: the loss on classes 0 to 4, learnt before, which must stay."""
    features, labels, _ = data.load(name)
    labels = labels.astype(np.int32)
    apply, init = _classifier("mlp", features.shape[1], hidden, max(10, int(labels.max()) + 1))

    def loss(parameters, rows):
        return entropy(apply(parameters, rows[0]), rows[1])

    old = labels < 5
    return Task(init, loss, loss, (features[~old], labels[~old]), (features[old], labels[old]))


def language(name, hidden=64, width=8):
    """Upper: the loss on the next letter of another author. Lower: on that of the first, learnt before or not."""
    letters, following, author = data.load(name)
    count = len(data.LETTERS)

    def init(key):
        one, two = jax.random.split(key)
        return [jax.random.normal(one, (count, width)), *_dense(two, (width * data.CONTEXT, hidden, count))]

    def loss(parameters, rows):
        table, *layers = parameters
        vectors = jax.nn.one_hot(rows[0], count) @ table  # a product, as with the patches
        return entropy(mlp(layers, vectors.reshape(len(rows[0]), -1)), rows[1])

    first = author == 0
    return Task(init, loss, loss, (letters[~first], following[~first]), (letters[first], following[first]))


def confidence(name, hidden=64):
    """Upper: the mean square of the logits, a plain remedy for overconfidence. Lower: cross-entropy."""
    features, labels, _ = data.load(name)
    rows = (features, labels.astype(np.int32))
    apply, init = _classifier("mlp", features.shape[1], hidden, int(labels.max()) + 1)
    return Task(
        init,
        lambda p, rows: jnp.mean(apply(p, rows[0]) ** 2),
        lambda p, rows: entropy(apply(p, rows[0]), rows[1]),
        rows,
        rows,
    )


def robustness(name, hidden=64, noise=0.3):
    """Upper: cross-entropy with noise on the features (a fixed draw for each row). Lower: without."""
    features, labels, _ = data.load(name)
    labels = labels.astype(np.int32)
    shaken = features + noise * np.random.default_rng(0).standard_normal(features.shape).astype(np.float32)
    apply, init = _classifier("mlp", features.shape[1], hidden)

    def loss(parameters, rows):
        return entropy(apply(parameters, rows[0]), rows[1])

    return Task(init, loss, loss, (shaken, labels), (features, labels))


def smallest(name, count=400, smooth=False):
    """Upper: the square of the coefficients (or of their differences). Lower: squared error on random features."""
    features, labels, _ = data.load(name)
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((features.shape[1], count)) / features.shape[1] ** 0.5
    # Features of neighbouring shifts are alike, so that differences of their coefficients mean smoothness.
    lifted = np.maximum(features @ np.sort(matrix, 1) + np.linspace(-2, 2, count), 0) / count**0.5
    rows = (lifted.astype(np.float32), labels.astype(np.float32))

    def upper(p, rows):
        return jnp.mean(jnp.diff(p) ** 2) if smooth else jnp.mean(p**2)

    return Task(
        lambda key: jax.random.normal(key, (count,)),
        upper,
        lambda p, rows: jnp.mean((rows[0] @ p - rows[1]) ** 2),
        rows,
        rows,
    )


#: Every task by name; those on the data of `data.JUDGING` are for judging, all others for tuning.
TASKS = {
    "forget a class, digits": lambda: forgetting("digits", 9),
    "sparsity, digits": lambda: sparsity("digits", "cnn"),
    "continual, digits": lambda: continual("digits"),
    "fairness, COMPAS": lambda: fairness("compas", (32,)),
    "smallest, diabetes": lambda: smallest("diabetes"),
    "confidence, cancer": lambda: confidence("cancer", 16),
    "fairness, Adult": lambda: fairness("adult", (32,)),
    "fairness, credit cards": lambda: fairness("credit", ()),
    "fairness, law school": lambda: fairness("law", (16, 16)),
    "smooth, crime": lambda: smallest("crime", smooth=True),
    "forget a class, Fashion-MNIST": lambda: forgetting("fashion", 3),
    "forget 200 images, Fashion-MNIST, CNN": lambda: forgetting("fashion", "200 rows", "cnn"),
    "sparsity, Fashion-MNIST": lambda: sparsity("fashion"),
    "continual, CIFAR-10": lambda: continual("cifar"),
    "confidence, CIFAR-10": lambda: confidence("cifar"),
    "robustness, CIFAR-10": lambda: robustness("cifar"),
    "fairness, stop and frisk": lambda: fairness("frisk", (32,)),
    "fairness, admissions": lambda: fairness("admissions", ()),
    "confidence, nursery": lambda: confidence("nursery", 32),
    "confidence, wine": lambda: confidence("wine", 16),
    "forget a class, MNIST": lambda: forgetting("mnist", 7),
    "forget 200 images, MNIST, CNN": lambda: forgetting("mnist", "200 rows", "cnn"),
    "sparsity, MNIST": lambda: sparsity("mnist"),
    "robustness, MNIST": lambda: robustness("mnist"),
    "Milton after Shakespeare, letters": lambda: language("text"),
    "fairness, CelebA": lambda: fairness("celeba", (32,)),
    "fairness, flights": lambda: fairness("flights", (32,)),
    "fairness, German credit": lambda: fairness("german", ()),
    "smallest, diamonds": lambda: smallest("diamonds"),
    "sparsity, MovieLens": lambda: sparsity("movielens"),
    "forget a speaker, vowels": lambda: forgetting("vowels", 4),
    "continual, vowels": lambda: continual("vowels"),
    "robustness, leaves": lambda: robustness("leaves"),
    "confidence, power": lambda: confidence("power", 16),
    "a novel after speeches, letters": lambda: language("speeches"),
    "fairness, marketing": lambda: fairness("marketing", (32,)),
    "fairness, contraceptives": lambda: fairness("contraceptive", (16,)),
    "fairness, gamma rays": lambda: fairness("magic", (32, 32)),
    "forget a class, pen strokes": lambda: forgetting("penbased", 3),
    "forget 200 rows, letters": lambda: forgetting("letter", "200 rows"),
    "sparsity, satellite": lambda: sparsity("satimage"),
    "continual, textures": lambda: continual("texture"),
    "robustness, spam": lambda: robustness("spambase"),
    "confidence, phonemes": lambda: confidence("phoneme", 32),
    "smallest, computers": lambda: smallest("computers"),
    "code after manuals, letters": lambda: language("manuals"),
    "fairness, mortgages": lambda: fairness("mortgages", (16,)),
    "fairness, insurance": lambda: fairness("insurance", (32,)),
    "fairness, survival": lambda: fairness("survival", (16, 16)),
    "forget a class, segments": lambda: forgetting("segment", 2),
    "forget 200 rows, rings": lambda: forgetting("ring", "200 rows"),
    "sparsity, splices": lambda: sparsity("splice", hidden=32),
    "continual, spoken vowels": lambda: continual("vowel"),
    "robustness, two clouds": lambda: robustness("twonorm"),
    "confidence, pages": lambda: confidence("page-blocks0", 32),
    "confidence, mushrooms": lambda: confidence("mushroom", 32),
    "smallest, food": lambda: smallest("food"),
    "comedies after histories, letters": lambda: language("plays"),
    "fairness, benefits": lambda: fairness("benefits", (16,)),
    "fairness, doctors": lambda: fairness("doctors", (32,)),
    "fairness, unions": lambda: fairness("unions", (16, 16)),
    "forget a class, vehicles": lambda: forgetting("vehicle", 0),
    "forget 200 rows, bananas": lambda: forgetting("banana", "200 rows"),
    "sparsity, endgames": lambda: sparsity("chess", hidden=32),
    "continual, signs": lambda: continual("movement_libras"),
    "robustness, personalities": lambda: robustness("personalities"),
    "confidence, tuna": lambda: confidence("tuna", 32),
    "confidence, shuttle": lambda: confidence("shuttle-c0-vs-c4", 32),
    "smallest, movies": lambda: smallest("movies"),
    "plays after an encyclopedia, letters": lambda: language("encyclopedia"),
    "fairness, contacts": lambda: fairness("contacts", (32,)),
    "fairness, clinics": lambda: fairness("clinics", (16, 16)),
    "forget a class, scanned digits": lambda: forgetting("optdigits", 8),
    "forget 200 rows, yeast": lambda: forgetting("yeast1", "200 rows"),
    "sparsity, noughts and crosses": lambda: sparsity("tic-tac-toe", hidden=32),
    "continual, lamps": lambda: continual("led7digit"),
    "confidence, diabetes in women": lambda: confidence("pima", 32),
    "smallest, wages": lambda: smallest("wages"),
    "fairness, savings": lambda: fairness("savings", (32,)),
    "fairness, votes": lambda: fairness("votes", (16, 16)),
    "fairness, borrowers": lambda: fairness("borrowers", (16,)),
    "fairness, visits": lambda: fairness("visits", (32,)),
    "forget a class, bird strikes": lambda: forgetting("strikes", 1),
    "forget 200 rows, subscribers": lambda: forgetting("subscribers", "200 rows"),
    "sparsity, cars": lambda: sparsity("cars", hidden=32),
    "continual, occupations": lambda: continual("occupations"),
    "robustness, proteins": lambda: robustness("proteins"),
    "confidence, exams": lambda: confidence("exams", 32),
    "confidence, lectures": lambda: confidence("lectures", 32),
    "smallest, hotels": lambda: smallest("hotels"),
    "romances after tragedies, letters": lambda: language("romances"),
    "fairness, patients": lambda: fairness("patients", (32,)),
    "fairness, arrests": lambda: fairness("arrests", (16,)),
    "fairness, heart attacks": lambda: fairness("infarcts", (16, 16)),
    "fairness, young women": lambda: fairness("young_women", (32,)),
    "forget a class, pitches": lambda: forgetting("pitches", 3),
    "forget 200 rows, plebiscite": lambda: forgetting("plebiscite", "200 rows"),
    "sparsity, developers": lambda: sparsity("developers", hidden=16),
    "sparsity, loans": lambda: sparsity("loans"),
    "continual, regions": lambda: continual("regions"),
    "confidence, packages": lambda: confidence("packages", 32),
    "robustness, cities": lambda: robustness("cities"),
    "smallest, trains": lambda: smallest("trains"),
    "spam after mail, letters": lambda: language("mail"),
}


@functools.cache
def named(name):
    """A task; the same one for the same name, so that what was compiled for it serves again."""
    return TASKS[name]()
