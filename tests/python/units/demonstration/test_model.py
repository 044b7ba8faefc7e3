"""The model is a GPT: no token is seen before its turn, and its matrices are known for what they are.

A sample is of whole words in whole paragraphs, and never stutters.
"""

import torch
from torch import Tensor, nn

import torchdion
from torchdion.demonstration.model import GPT, PROMPT, WIDTH, sample, whole_paragraphs
from torchdion.demonstration.text import Vocabulary

TEXT = "Return a word.\nReturn one more word that is longer than it should be."


def test_a_later_token_changes_no_earlier_logits() -> None:
    model = GPT(vocabulary=11, context=8, width=16, layers=2, heads=2)
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5] = 10
    difference = (model(tokens) - model(changed)).abs().amax(dim=(0, 2))
    assert difference[:5].max() < 1e-6
    assert difference[5:].min() > 1e-4


def test_its_parameters_are_routed_as_the_papers() -> None:
    model = GPT(vocabulary=11, context=8, width=16, layers=2, heads=2)
    names: dict[str, set[str]] = {}
    for group in torchdion.param_groups(model):
        names.setdefault(group["kind"], set()).update(name for name, _ in group["params"])
    assert names["embedding"] == {"tokens.weight", "positions.weight"}
    assert names["head"] == {"head.weight"}
    assert all("bias" in name or "norm" in name for name in names["vector"])
    assert len(names["matrix"]) == 2 * 4


class Favourite(nn.Module):
    """Gives the same logits whatever it reads, highest for the rare token and one other."""

    context = 8

    def __init__(self, vocabulary: Vocabulary, favourite: str) -> None:
        super().__init__()
        self.head = nn.Linear(1, len(vocabulary))
        self.logits = torch.zeros(len(vocabulary))
        self.logits[0] = 9.0
        self.logits[vocabulary.encode(favourite)] = 6.0

    def forward(self, tokens: Tensor) -> Tensor:
        assert tokens.shape[1] <= self.context
        return self.logits.repeat(*tokens.shape, 1)


def test_neither_rare_words_nor_a_token_twice_in_a_row_are_drawn() -> None:
    vocabulary = Vocabulary(TEXT)
    text = sample(Favourite(vocabulary, " word"), vocabulary, seed=0)
    assert "…" not in text
    assert text.count(" word") > 40
    assert " word word" not in text


def test_what_may_stop_anywhere_is_left_out() -> None:
    assert whole_paragraphs("Return a word.\nReturn one\nReturn") == "Return a word.\nReturn one"
    assert whole_paragraphs("Return") == "Return"


def test_a_sample_ends_with_a_paragraph_and_has_short_lines() -> None:
    vocabulary = Vocabulary(TEXT)
    model = Favourite(vocabulary, "\n")
    text = sample(model, vocabulary, seed=0)
    assert text.startswith(PROMPT)
    assert max(map(len, text.splitlines())) <= WIDTH
    *_, last = text.splitlines()
    longer = sample(model, vocabulary, seed=0, length=400)
    assert f"{last}\n" in longer  # what was left out stood behind the end of a line
    assert sample(model, vocabulary, seed=0) == text != sample(model, vocabulary, seed=1)
