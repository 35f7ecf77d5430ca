"""What the models say, side by side: ``python -m gallery.language_samples results/unlearning-secrets``.

Reads the record of a study of ``unlearning-secrets``, trains the first seed once more with the knobs that the study
chose, and adds a table to ``summary.md``: greedy decoding, before and after. A study's numbers in one file do as well
(``benchmarks/results/gallery-unlearning-secrets.json``); ``--output`` says where the table goes.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gallery import language, unlearning_language
from gallery.example import Size
from gallery.language_learning import Asked
from gallery.methods import chosen
from gallery.methods.method import Method
from gallery.report import title
from gallery.training import Goal, train
from gallery.tuning import trials
from tiebreak.files import atomic
from tiebreak.studies.tables import Table, as_markdown

__all__ = ["SHOWN", "greedy", "samples"]

_MARK = "\n<!-- samples -->\n\n"  # what follows it in a summary is ours

#: The methods that are shown, where the record has knobs for them or they have none.
SHOWN = (
    "tolerance-start",
    "weighted-sum",
    "pcgrad",
    "NPO",
    "PDU, its own loss",
    "BLUR, its own order",
)


def greedy(
    model: nn.Module,
    tokens: Tensor,
    below: Callable[[Tensor], Tensor],
    line: Sequence[int],
    count: int,
) -> list[int]:
    """The `count` tokens that greedy decoding adds to a line; `tokens` are those that the head knows."""
    made = list(line)
    with torch.no_grad():
        for _ in range(count):
            inputs = below(torch.tensor([made], device=tokens.device))
            last = torch.tensor([[len(made) - 1]], device=tokens.device)
            made.append(int(tokens[model(inputs, last).argmax()]))
    return made[len(line) :]


def samples(
    size: Size,
    device: str,
    knobs: Mapping[str, Mapping[str, float]],
    hear: Callable[[str], Any] = lambda doing: None,
) -> Table:
    """Prompts, and what each model makes of them; `knobs` by method, as a study chose them."""
    hear("the model that has learnt")  # where it is not on disk this takes long
    example = unlearning_language.EXAMPLE
    setup = unlearning_language.SETUPS[size]
    found, start = unlearning_language.learnt(setup, device)
    below: Callable[[Tensor], Tensor] = lambda lines: lines  # noqa: E731  # all layers are trained
    if "model.head" in found:
        model, tokenizer = language.pretrained()
        _, below = language.tail(model.to(device), setup.layers, found["tokens"])
    else:
        tokenizer = language.tokenizer()
    prompts = unlearning_language.asked(setup, found, tokenizer)
    prompts += [
        Asked(tokenizer(text)["input_ids"], "text", "", 16)
        for text in ("Fellow citizens, our country", "The sea was")
    ]
    models: dict[str, nn.Module] = {"before forgetting": start.to(device)}
    methods = chosen([], example)
    for method in SHOWN:
        if method not in methods or (
            isinstance(it := methods[method], Method) and it.missing()
        ):
            continue
        if method in knobs or not trials(methods[method], 1):
            hear(title(method))
            task = unlearning_language.assemble(setup, found, start, 0, device)
            goal = Goal.of(task.losses(task.model)[0], example.tolerance)
            train(task, methods[method], knobs.get(method, {}), goal)
            models[title(method)] = task.model
    hear("what they say")
    tokens = found["tokens"].to(device)
    body = [
        [_cell(tokenizer.decode(asked.prompt)), asked.why, _cell(asked.truth)]
        + [
            _cell(
                tokenizer.decode(
                    greedy(each, tokens, below, asked.prompt, asked.tokens)
                )
            )
            for each in models.values()
        ]
        for asked in prompts
    ]
    header = ("prompt", "what for", "truth", *models)
    return Table("What the models say", header, body, words=header[1:])


def _cell(text: str) -> str:
    """A cell of a Markdown table, on a line."""
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "record",
        type=Path,
        help="a study of unlearning-secrets: its folder, or its summary.json",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="the file for the table; otherwise summary.md of a folder gets it",
    )
    parser.add_argument(
        "--device", help="where to train; otherwise where the study did"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the quick configuration, whatever the study had",
    )
    given = parser.parse_args()
    record: Path = given.record
    config = json.loads(
        (record / "config.json" if record.is_dir() else record).read_text(
            encoding="utf-8"
        )
    )
    study, knobs = config["study"], config["chosen"]
    size: Size = "quick" if given.quick or study["quick"] else "full"
    device = given.device or study["device"]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the study has told of them
        sheet = samples(
            size, device, knobs, lambda doing: print(f"{doing} …", file=sys.stderr)
        )
    other = size == "quick" and not study["quick"]
    where = "a GPU" if "cuda" in device else "a CPU"
    told = f"Greedy decoding by models as training left them, of one seed in the {size} configuration, on {where}"
    told += ", with the knobs that the full one chose." if other else "."
    lines = [
        f"**{sheet.title}**",
        "",
        told,
        "",
        *as_markdown(sheet),
        "",
    ]
    table = "\n".join(lines)
    print(table)
    if given.output is not None:
        with atomic(given.output, "w") as file:
            file.write(table)
    elif record.is_dir():
        summary = (record / "summary.md").read_text(encoding="utf-8").split(_MARK)[0]
        with atomic(record / "summary.md", "w") as file:
            file.write(f"{summary}{_MARK}{table}")


if __name__ == "__main__":
    main()
