"""``python -m benchmarks.tolerance``: judge all laws; ``--quick``: a look in two minutes; ``--tune``: find constants.

On a GPU (an H200) the search takes eight minutes and the judging three; on two cores the judging takes over an hour.
Both want the files that ``benchmarks/tolerance/data.py`` names. The search writes what it chose, by the rule in
``tune.choose``, to ``benchmarks/results/tolerance_tuning.json``. The judging reads it from there, ours too: what it
chose is what is judged, and then what is written into ``tiebreak.tolerance``.
"""

import argparse
import json
import time

import jax

from benchmarks.tolerance import judge, report, settings, tasks, tune
from tiebreak.provenance import stamp
from tiebreak.tolerance import MOVING, NUMBER

ABOUT = """\
A run is inside where it keeps the promise: at the end, on the full training set, g is at most one tolerance above the
same seed's lower-only training. Lost share: (f − f*)/(f₀ − f*), f₀ of lower-only training, f* of the best of 17 fixed
weights that ends inside, interpolated at the tolerance; 0 is as good as the sweep, which costs seventeen trainings, and
1 no better than ignoring f. Swing: standard deviation of the excess over the last 50 steps, in tolerances. Averaged
weights: an exponential average (0.99), against that of lower-only training. All laws step along (∇f/s + w∇g)/max(1, w).
Diverged: not finite, or g above that of the untrained model; excesses of 50 and more are trainings that collapsed, too.

There were rounds before; each was judged on data that may be tuned on now, with a twin: 92.5 % of 440 runs
inside, 4 % lost; 96.2 % and 19 % (another step then); 91.2 % and 3 %; 95.7 % and 11 %; 99.0 % and 10 %; 93.5 % and 7 %
(worst 169; with a number 92.5 % and 9 %); 96.9 % and 10 % (worst 1.85; with a number 92.8 % and 20 %); 95.4 % and 14 %
(worst 2.88; with a number 88.1 % and 26 %); 96.7 % and 10 % (worst 2.77; with a number 96.2 % and 33 %).

All constants are those of the round before. They were
found so (seeds {seeds}): {searched}. Every law had {trials} trials for each kind of reference, from the best of the
rounds before: of ours {given} were given, the others had a first weight of 1000 among theirs, the rest are children of
the best so far. So the others had fewer trials than ours all the same: ours had more in the rounds before, and those
given were found with about sixty trials on up to eight groups. The cost is the lost share inside, and 5 and the breach
outside. The best {finalists} by cost, and what was in use before, were then compared on other data and seeds
({other_seeds}): {compared}. Chosen by a rule, by all these runs: of those with {twin} of the runs inside with a twin
and {number} with a number or a share, that of the least lost share in the median; without any, the least cost.
What is used with the start was not searched again. Ours cuts gradients out of proportion, the others do not. Rounds
before were tuned on these, too: {earlier}.

Before the round before {changes} changes of ours with a number were compared with what is shipped, on twenty groups of
earlier rounds (seeds 400, 401; 410, 411; 420, 421), and about 120 by hand on up to six of them: none is better by the
rule above. What is shipped had {tuned_number} there, and with a twin {tuned_twin}. When a model is set to its twin
(fifty steps in vain, a twentieth of all) was chosen among eight variants on seven groups of the eighth round: 94.6 %
of 280 runs inside without, 98.6 % with it; of {runs} runs here {returned} were set to it. Leaving out the mechanisms
of the rule one by one was planned, and there was no time for it.

Finished: the last step is followed by `finish`, the search on the line from the model that has the reference's loss:
lower-only training with the same batches (for "other batches" with others, whose loss is the number then, and what is
counted from; for the start the start). Both losses are measured on the full training set. All rows are given it, those
of fixed weights, too. Its constants were set by hand, after a look at four groups of the eighth round and
two settings of an earlier one. In the mean it
evaluated both losses {evaluations:.1f} times.

Judged (seeds {judge_seeds}; JAX 0.11.2 on a GPU) on data, and with schedules and optimizers, that were not tuned on:
{judged}. No hand chose the tolerances: a group's is the least of 2, 5, 10, 20 and 50 % of its lower-only loss (of 0.1,
where that is less) that nine of ten pairs of lower-only trainings keep to, which differ in their batches alone. Nobody
ran a law on these data before, and no hand was between the choice and the judging.{missing}

"Share": the tolerance is given as a share of the twin's loss, which comes to the same at the end; where it would be
more than all of that loss the run does not count in this line.

{verdict}

{sweeps}"""
MISSING = " Without a result: {}."
SWEEPS = """\
A yardstick: a sweep finds the weight that is right for the seeds it is made on. Of the weights 3, 10, 32, 178 and 1000
take that which loses least among those inside on one seed, and use it on another: {one} (inside, worst, lost). Chosen
on four seeds, so by twenty trainings: {four}. Five weights are a coarse sweep; f*, against which the lost share is
counted, is the best of seventeen on the judged seed itself, interpolated, and nobody can have that beforehand."""
GOALS = """\
The goal with a twin was 97 % inside, a worst excess of 1.25 and 8 % lost: it is {twin}, finished {twin_finished}. With
the start when fine-tuning it was the same: {start}, finished {start_finished}. With a number 95 % and 20 %: {number},
finished {number_finished}."""


_FINISHED = (report.everything, "finished excess", "finished lost")


def _figures(records, row, keep=report.everything, own="excess", lost="lost"):
    inside, worst, lost = report.figures(records, row, keep, own, lost)
    return f"{100 * inside:.1f} %, {worst:.2f} and {round(100 * lost)} %"


def _tried(found):
    return (
        f"{100 * found['inside']:.1f} % inside, the worst at {found['worst']:.1f}, and {100 * found['lost']:.0f} % lost"
    )


def _swept(records, many):
    inside, worst, lost = report.swept(records, many)
    return f"{100 * inside:.1f} %, {worst:.0f} and {100 * lost:.0f} %"


def about(records, seeds):
    tuned, judged = judge.tuned(), {record["task"] for record in records}
    missing = [group.task for group in settings.JUDGE if group.task not in judged]
    refined = json.loads((judge.RESULTS / "tolerance_refined.json").read_text())["trials"]
    return ABOUT.format(
        seeds=", ".join(map(str, settings.SEARCH_SEEDS)),
        searched="; ".join(group.task for group in settings.SEARCH),
        trials=max(tuned["trials"].values()),
        given=len(tune.CHANGES) + 1,
        finalists=tune.FINALISTS,
        other_seeds=", ".join(map(str, settings.COMPARE_SEEDS)),
        compared="; ".join(group.task for group in settings.COMPARE),
        twin=f"{100 * tune.INSIDE['twin']:.1f} %",
        number=f"{100 * tune.INSIDE['number']:.1f} %",
        earlier="; ".join(dict.fromkeys(g.task for g in settings.EARLIER if g not in settings.JUDGE)),
        judge_seeds=", ".join(map(str, seeds)),
        judged="; ".join(record["task"] for record in records),
        verdict=GOALS.format(
            twin=_figures(records, "ours, twin"),
            start=_figures(records, "ours, start", report.fine, "over the start"),
            number=_figures(records, "ours, number"),
            twin_finished=_figures(records, "ours, twin", *_FINISHED),
            start_finished=_figures(records, "ours, start", report.fine, *_FINISHED[1:]),
            number_finished=_figures(records, "ours, number", *_FINISHED),
        ),
        runs=len(report.gather(records, "ours, twin", "returns")),
        returned=int((report.gather(records, "ours, twin", "returns") > 0).sum()),
        evaluations=report.gather(records, "ours, twin", "evaluations").mean(),
        missing=MISSING.format("; ".join(missing)) if missing else "",
        sweeps=SWEEPS.format(one=_swept(records, 1), four=_swept(records, 4)),
        changes=len(refined) - 2,
        tuned_number=_tried(refined["number: in use"]["number"]),
        tuned_twin=_tried(refined["twin: in use"]["twin"]),
    )


def _first():
    """The first trials by the name of their row: what was in use before, then changes of it."""
    chosen = {name: [values] for name, values in judge.tuned()["chosen"].items() if "within" not in name}
    for trials in chosen.values():
        if "start" in trials[0]:  # a first weight that is g alone
            trials += [trials[0] | {"start": 1000.0, "aim": a} for a in (0.7, 0.8, 0.9)]
            trials += [trials[0] | {"start": 1000.0, "gain": k * trials[0]["gain"]} for k in (3.0, 10.0)]
    both = {"ours, moving": (MOVING, tune.CHANGES), "ours, number": (NUMBER, tune.NUMBER_CHANGES)}
    return chosen | {
        name: [(base._replace(**{k: float(v) for k, v in change.items()}))._asdict() for change in ({}, *changes)]
        for name, (base, changes) in both.items()
    }


def _tune(say, seconds):
    path, record = judge.RESULTS / "tolerance_tuning.json", judge.tuned()
    record = {"chosen": record["chosen"]}

    def keep(known, chosen):
        record["best trials"] = {tune.name(row): _plain(trials[:5]) for row, trials in known.items()}
        record["trials"] = {tune.name(row): len(trials) for row, trials in known.items()}
        record["compared"] = {tune.name(row): found for row, found in chosen.items()}
        record["chosen"] |= {tune.name(row): found["values"] for row, found in chosen.items()}
        record.update(stamp())
        path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")

    first = _first()
    began = time.perf_counter()
    benches = tune.benches(
        [(g, settings.SEARCH_SEEDS) for g in settings.SEARCH] + [(g, settings.COMPARE_SEEDS) for g in settings.COMPARE],
        say,
    )
    count = len(settings.SEARCH)
    left = seconds - (time.perf_counter() - began)
    begin = {row: first[tune.name(row)] for row in tune.ROWS}
    tune.search(benches[:count], benches[count:], begin, left, say=say, keep=keep)


def _plain(trials):
    return [{k: v for k, v in trial.items() if k != "all"} for trial in trials]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="three settings, two seeds, scikit-learn's data; prints only"
    )
    parser.add_argument("--tune", action="store_true", help="search the constants of all laws and choose")
    parser.add_argument("--seconds", type=float, default=420, help="for the search, its set-up included")
    parser.add_argument("--draw", action="store_true", help="table and figure again, from the results")
    parser.add_argument("--part", action="store_true", help="results of the groups that a stopped judging had done")
    parser.add_argument("--seeds", type=int, nargs="+", help="other seeds to judge on; prints only")
    options = parser.parse_args()
    jax.config.update("jax_default_matmul_precision", "float32")  # no TF32: the excess is a small difference
    began = time.perf_counter()

    def say(text):
        print(f"{time.perf_counter() - began:6.0f} s  {text}", flush=True)

    if options.quick:
        print(report.table(judge.run(settings.QUICK, (100, 101), say, threads=1), "Quick, on data of earlier rounds:"))
        return
    if options.draw:
        known = json.loads((judge.RESULTS / "tolerance.json").read_text())
        (report.DOCS / "_tables" / "tolerance.md").write_text(report.table(known["judging"], known["about"]))
        report.figure(known["judging"], report.DOCS / "_static" / "tolerance.png")
        return
    groups = [*settings.SEARCH, *settings.COMPARE] if options.tune else settings.JUDGE
    for group in [] if options.part else groups:
        tasks.named(group.task)  # a file that is missing is told now
    if options.tune:
        _tune(say, options.seconds)
        return
    seeds = tuple(options.seeds or settings.JUDGE_SEEDS)

    part = judge.RESULTS / "tolerance_part.json"  # what there is, should the program be stopped
    if options.part:
        records = json.loads(part.read_text())
    else:
        records = judge.run(settings.JUDGE, seeds, say, keep=lambda found: part.write_text(json.dumps(found)))
    print(report.table(records, about(records, seeds)))
    if not options.seeds:
        report.write(records, about(records, seeds), judge.RESULTS, judge.judged(), judge.since())
    part.unlink()


if __name__ == "__main__":
    main()
