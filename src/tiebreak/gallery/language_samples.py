"""What the models say, side by side: ``python -m tiebreak.gallery.language_samples results/unlearning-secrets``.

Reads the record of a study of the example ``unlearning-secrets``, trains the first seed once more with the knobs that
the study chose, and adds a table to ``summary.md``: greedy decoding, before and after.
"""

import argparse
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tiebreak.experiments.tables import Sheet, as_markdown
from tiebreak.files import atomic
from tiebreak.gallery import canaries, language
from tiebreak.gallery.language import Tail
from tiebreak.gallery.methods import chosen
from tiebreak.gallery.training import Goal, train
from tiebreak.gallery.tuning import trials
from tiebreak.gallery.unlearning_language import EXAMPLE, SETUPS, assemble, planted, split

__all__ = ["SHOWN", "greedy", "samples"]

_MARK = "\n<!-- samples -->\n\n"  # what follows it in a summary is ours

#: The methods that are shown, where the record has knobs for them or they have none.
SHOWN = ("tolerance-start", "weighted-sum", "NPO", "gradient ascent")


def greedy(
    model: Tail, tokens: Tensor, below: Callable[[Tensor], Tensor], line: Sequence[int], count: int
) -> list[int]:
    """The `count` tokens that greedy decoding adds to a line; `tokens` are those that the head knows."""
    made = list(line)
    with torch.no_grad():
        for _ in range(count):
            inputs = below(torch.tensor([made], device=tokens.device))
            last = torch.tensor([[len(made) - 1]], device=tokens.device)
            made.append(int(tokens[model(inputs, last).argmax()]))
    return made[len(line) :]


def samples(size: Any, device: str, knobs: Mapping[str, Mapping[str, float]]) -> Sheet:
    """Prompts, and what each model makes of them; `knobs` by method, as a study chose them."""
    setup = SETUPS[size]
    found, start = planted(setup, device)
    below: Callable[[Tensor], Tensor] = lambda lines: lines  # noqa: E731  # all layers are trained
    if "model.head" in found:
        model, tokenizer = language.pretrained()
        _, below = language.tail(model.to(device), setup.layers, found["tokens"])
    else:
        tokenizer = language.tokenizer()
    people = canaries.records(
        setup.people, setup.digits, setup.alternatives, setup.decoys, torch.Generator().manual_seed(0)
    )
    gone, stay = (rows.tolist() for rows in split(setup, torch.Generator().manual_seed(0)))
    asked = [(person, "to forget") for person in gone[:3]] + [(person, "to keep") for person in stay[:2]]
    prompts = [
        (
            tokenizer(canaries.sentence(people.names[i], people.codes[i]))["input_ids"][: -setup.digits],
            why,
            setup.digits,
        )
        for i, why in asked
    ]
    prompts += [(tokenizer(text)["input_ids"], "text", 16) for text in ("Fellow citizens, our country", "The sea was")]
    models, methods = {"before": start.to(device)}, chosen([], EXAMPLE)
    for name in SHOWN:
        if name in knobs or (name in methods and not trials(methods[name], 1)):
            task = assemble(setup, found, start, 0, device)
            goal = Goal.of(task.losses(task.model)[0], EXAMPLE.tolerance)
            train(task, methods[name], knobs.get(name, {}), goal)
            models[name] = task.model  # type: ignore[assignment]  # assembled with a Tail
    tokens = found["tokens"].to(device)
    rows = [
        [_cell(tokenizer.decode(line)), why]
        + [_cell(tokenizer.decode(greedy(each, tokens, below, line, count))) for each in models.values()]
        for line, why, count in prompts
    ]
    truth = ["".join(map(str, people.codes[i].tolist())) for i, _ in asked] + ["", ""]
    body = [[row[0], row[1], true, *row[2:]] for row, true in zip(rows, truth, strict=True)]
    return Sheet("What the models say", ("prompt", "what for", "true code", *models), body)


def _cell(text: str) -> str:
    """A cell of a Markdown table, on a line."""
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("record", type=Path, help="the folder of a study of unlearning-secrets")
    record: Path = parser.parse_args().record
    config = json.loads((record / "config.json").read_text())
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the study has told of them
        sheet = samples("quick" if config["study"]["quick"] else "full", config["study"]["device"], config["chosen"])
    table = "\n".join([f"**{sheet.title}**", "", *as_markdown(sheet, ("what for", *sheet.header[2:])), ""])
    summary = (record / "summary.md").read_text(encoding="utf-8").split(_MARK)[0]
    with atomic(record / "summary.md", "w") as file:
        file.write(f"{summary}{_MARK}{table}")
    print(table)


if __name__ == "__main__":
    main()
