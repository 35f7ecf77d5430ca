"""The groups of settings that the constants are tuned on, those for headroom, and those that are judged on.

No data set is in two of the lists `TUNE`, `HEADROOM` and `JUDGE`, and some schedules of the latter two are not in the
first. `QUICK` has data of scikit-learn only.
"""

from typing import NamedTuple


class Setting(NamedTuple):
    optimizer: str
    schedule: str
    start: str  # "scratch", "trained" (on the lower loss alone), "fine-tuning" (the same, at a tenth of the rate)


class Group(NamedTuple):
    """Settings that share a task, a batch size and a number of steps, and so one compiled program."""

    task: str
    batch: int
    steps: int
    tolerance: (
        float | str
    )  # a loss, "5%" of the loss of lower-only training, or "repeatable"
    settings: list


def _started(settings, start):
    """The settings with those from scratch replaced by another start."""
    return [s._replace(start=start) if s.start == "scratch" else s for s in settings]


QUICK = [
    Group(
        "forget a class, digits",
        128,
        400,
        0.02,
        [Setting("AdamW", "cosine", "scratch")],
    ),
    Group(
        "smallest, diabetes",
        64,
        400,
        "5%",
        [Setting("SGD with momentum", "cosine", "scratch")],
    ),
    Group(
        "confidence, cancer", 64, 400, 0.01, [Setting("Adam", "step", "fine-tuning")]
    ),
]

_SCRATCH = [
    Setting("SGD", "step", "scratch"),
    Setting("SGD with momentum", "cosine", "scratch"),
    Setting("Adam", "linear", "scratch"),
    Setting("AdamW", "warm-up, linear", "scratch"),
    Setting("AdamW", "constant", "scratch"),
    Setting("Muon", "cosine", "scratch"),
    Setting("Muon", "warm-up, constant", "scratch"),
]
_MIXED = [
    Setting("SGD", "constant", "scratch"),
    Setting("SGD with momentum", "warm-up, linear", "scratch"),
    Setting("AdamW", "cosine", "scratch"),
    Setting("Muon", "linear", "scratch"),
    Setting("Adam", "step", "trained"),
    Setting("SGD with momentum", "linear", "trained"),
    Setting("AdamW", "constant", "fine-tuning"),
    Setting("Muon", "cosine", "fine-tuning"),
]
_OTHER = [
    Setting("SGD", "cosine", "scratch"),
    Setting("SGD with momentum", "constant", "scratch"),
    Setting("Adam", "warm-up, constant", "scratch"),
    Setting("Muon", "constant", "scratch"),
    Setting("AdamW", "linear", "trained"),
    Setting("Muon", "warm-up, linear", "trained"),
    Setting("SGD", "step", "fine-tuning"),
    Setting("Adam", "cosine", "fine-tuning"),
]
#: The vector of the coefficients of "smallest" has no matrix for Muon.
_VECTOR = [s for s in _MIXED if s.optimizer != "Muon"] + [
    Setting("Adam", "constant", "scratch")
]

TUNE = [
    Group("fairness, Adult", 256, 800, "5%", _MIXED),
    Group("fairness, COMPAS", 512, 500, "2%", _OTHER),
    Group("forget a class, pen strokes", 128, 150, 0.02, _SCRATCH),
    Group("forget 200 rows, letters", 512, 3000, "5%", _OTHER),
    Group(
        "forget 200 images, Fashion-MNIST, CNN with batch norm",
        128,
        250,
        "10%",
        _SCRATCH,
    ),
    Group("sparsity, MNIST, CNN", 128, 500, 0.02, _MIXED),
    Group("l1 sparsity, satellite", 64, 800, "5%", _OTHER),
    Group("continual, textures", 64, 2000, 0.02, _started(_MIXED, "trained")),
    Group("robustness, segments", 256, 150, 0.02, _SCRATCH),
    Group("confidence, phonemes", 128, 5000, "5%", _MIXED),
    Group("confidence, wine", 64, 500, 0.01, _OTHER),
    Group("smallest, diabetes", 64, 600, "5%", _VECTOR),
    Group("Milton after Shakespeare, MLP", 1024, 250, "2%", _SCRATCH),
    Group("Milton after Shakespeare, transformer", 64, 500, "2%", _MIXED),
]

_FALLING = [
    Setting("Adam, 0.95", "cosine to 3 %", "trained"),
    Setting("RMSprop", "linear", "trained"),
    Setting("SGD with decay", "cosine", "trained"),
    Setting("AdamW, 0.95", "exponential", "trained"),
    Setting("SGD with momentum, 0.95", "trapezoid", "trained"),
    Setting("AdamW", "late drop", "trained"),
    Setting("Adam, 0.5", "cosine with warm-up", "fine-tuning"),
]
#: Trained models whose learning rate begins anew: the start is the reference.
HEADROOM = [
    Group("fairness, savings", 128, 800, "repeatable", _FALLING),
    Group("forget 200 rows, subscribers", 64, 800, "repeatable", _FALLING),
    Group("robustness, proteins", 64, 600, "repeatable", _FALLING),
    Group("fairness, borrowers", 64, 800, "repeatable", _FALLING),
    Group("confidence, lectures", 256, 800, "repeatable", _FALLING),
    Group("fairness, visits", 512, 800, "repeatable", _FALLING),
    Group("romances after tragedies, letters", 128, 800, "repeatable", _FALLING),
    Group("fairness, young women", 1024, 600, "repeatable", _FALLING),
    Group("fairness, arrests", 64, 800, "repeatable", _FALLING),
    Group("sparsity, loans", 512, 800, "repeatable", _FALLING),
    Group("spam after mail, letters", 256, 800, "repeatable", _FALLING),
]

_SHORT = [
    Setting("SGD", "cosine", "scratch"),
    Setting("SGD with momentum", "linear", "scratch"),
    Setting("Adam", "constant", "scratch"),
    Setting("AdamW", "cosine with warm-up", "scratch"),
    Setting("AdamW", "step", "scratch"),
    Setting("Muon", "trapezoid", "scratch"),
    Setting("Muon", "constant", "scratch"),
]
_FIRST = [
    Setting("SGD", "linear", "scratch"),
    Setting("SGD with momentum", "cosine with warm-up", "scratch"),
    Setting("AdamW", "warm-up, linear", "scratch"),
    Setting("Muon", "cosine", "scratch"),
    Setting("Adam", "constant, then linear", "trained"),
    Setting("Muon", "step", "trained"),
    Setting("SGD with momentum", "constant", "fine-tuning"),
    Setting("AdamW", "exponential", "fine-tuning"),
]
_SECOND = [
    Setting("SGD", "warm-up, constant", "scratch"),
    Setting("SGD with momentum", "step", "scratch"),
    Setting("Adam", "inverse root", "scratch"),
    Setting("Muon", "linear", "scratch"),
    Setting("AdamW", "cosine", "trained"),
    Setting("SGD", "constant", "trained"),
    Setting("Adam", "trapezoid", "fine-tuning"),
    Setting("Muon", "warm-up, constant", "fine-tuning"),
]
_COEFFICIENTS = [s for s in _SHORT if s.optimizer != "Muon"] + [
    Setting("SGD with momentum", "constant", "scratch")
]

#: In an order such that a judging that is stopped has groups of most kinds.
JUDGE = [
    Group("fairness, earnings", 256, 800, "repeatable", _FIRST),
    Group(
        "forget 200 images, glyphs, CNN with batch norm", 128, 250, "repeatable", _SHORT
    ),
    Group("fortunes after the Bible, transformer", 64, 600, "repeatable", _SECOND),
    Group("confidence, voters", 128, 5000, "repeatable", _FIRST),
    Group("l1 sparsity, glyphs", 256, 500, "repeatable", _SECOND),
    Group("forget a class, months", 512, 150, "repeatable", _SHORT),
    Group("continual, months", 128, 600, "repeatable", _started(_FIRST, "trained")),
    Group("smallest, deliveries", 128, 150, "repeatable", _COEFFICIENTS),
    Group("fairness, pupils", 1024, 2000, "5%", _SECOND),
    Group("sparsity, pictures, CNN with batch norm", 64, 600, "repeatable", _FIRST),
    Group("robustness, voters", 512, 3000, "repeatable", _SECOND),
    Group("German after English manual pages, MLP", 1024, 250, "repeatable", _SHORT),
    Group("forget 200 images, pictures, CNN", 256, 500, 0.02, _FIRST),
    Group("fairness, insured", 64, 600, "repeatable", _SECOND),
]
