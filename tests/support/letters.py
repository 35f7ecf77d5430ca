"""A tiny language model and made text, a token for each letter: what the tests of unlearning in language share."""

import string

import pytest
import transformers

import torch
from gallery.language_learning import Corpus

LETTERS = string.ascii_letters + string.digits + " .,\n"


class Letters:
    """A tokenizer: a token for each letter."""

    def __call__(self, text):
        return {"input_ids": [LETTERS.index(letter) + 1 for letter in text]}

    def decode(self, tokens):
        return "".join(LETTERS[token - 1] for token in tokens)


def transformer(seed=0):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(LETTERS) + 1, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def texts():
    words = [
        "house ",
        "river ",
        "green, ",
        "seven ",
        "walks ",
        "under ",
        "stone.\n",
        "light ",
    ]
    order = torch.randint(
        8, (12, 60), generator=torch.Generator().manual_seed(0)
    ).tolist()
    made = ["".join(words[i] for i in row) for row in order]
    return Corpus(made[:6], made[6:9], [text.upper() for text in made[9:]])


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
