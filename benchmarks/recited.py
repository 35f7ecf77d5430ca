"""What the pretrained SmolLM2-135M knows by heart: ``python -m benchmarks.recited``, minutes on a CPU.

Famous beginnings, and how much of the true continuation it says; then text of several kinds, in nats per token.
What the page on unlearning in a language model says of it is from here.
"""

from collections.abc import Iterator
from typing import Any

import torch

from gallery import language
from gallery import language_learning as learning
from gallery.unlearning_author import authors

#: Beginnings, and how they go on.
FAMOUS = {
    "Shakespeare": (
        ("To be, or not to be, that is the question: Whether 'tis nobler in the mind to suffer",
         " the slings and arrows of outrageous fortune, Or to take arms against a sea of troubles"),
        ("Shall I compare thee to a summer's day? Thou art",
         " more lovely and more temperate: Rough winds do shake the darling buds of May"),
        ("Tomorrow, and tomorrow, and tomorrow, Creeps in this petty pace",
         " from day to day, To the last syllable of recorded time"),
        ("Friends, Romans, countrymen, lend me your ears;",
         " I come to bury Caesar, not to praise him. The evil that men do lives after them"),
        ("But, soft! what light through yonder window breaks?", " It is the east, and Juliet is the sun."),
        ("All the world's a stage, And all the men and women",
         " merely players: They have their exits and their entrances"),
        ("If music be the food of love,", " play on; Give me excess of it, that, surfeiting"),
        ("The quality of mercy is not strain'd, It droppeth",
         " as the gentle rain from heaven Upon the place beneath"),
    ),
    "King James Bible": (
        ("In the beginning God created the heaven and the earth. And the earth was",
         " without form, and void; and darkness was upon the face of the deep."),
        ("The LORD is my shepherd; I shall not want. He maketh me",
         " to lie down in green pastures: he leadeth me beside the still waters."),
        ("For God so loved the world, that he gave",
         " his only begotten Son, that whosoever believeth in him should not perish, but have everlasting life."),
    ),
    "Moby Dick": (
        ("Call me Ishmael. Some years ago",
         " - never mind how long precisely - having little or no money in my purse"),
    ),
}  # fmt: skip


def said(model: Any, tokenizer: Any, begin: str, rest: str) -> tuple[float, int]:
    """The share of the true tokens that are the likeliest after the true ones, and how many greedy decoding says."""
    given, true = (tokenizer(part)["input_ids"] for part in (begin, rest))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([given + true])).logits[0, len(given) - 1 : -1]
    right = (logits.argmax(-1) == torch.tensor(true)).tolist()
    return sum(right) / len(right), [*right, False].index(False)


def rows() -> Iterator[str]:
    model, tokenizer = language.pretrained()
    for author, passages in FAMOUS.items():
        found = [said(model.eval(), tokenizer, *passage) for passage in passages]
        shares, runs = zip(*found, strict=True)
        yield f"{author}: {100 * sum(shares) / len(shares):.0f} % of the tokens; said from the beginning {runs}"
    kinds = dict(zip(("Shakespeare", "Milton"), authors(), strict=True)) | {"addresses": learning.corpus().seen}
    for kind, texts in kinds.items():
        blocks = language.blocks(tokenizer, texts, 128, 24)
        with torch.no_grad():
            loss = model(input_ids=blocks, labels=blocks).loss
        yield f"{kind}: {float(loss):.2f} nats per token"


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
