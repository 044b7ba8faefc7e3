"""Samples of examples/gpt: what is drawn, how often in a row, and where the text ends."""

from itertools import groupby

import pytest
import torch
from sample import LONGEST_RUN, Sampling, draw, generate, whole_lines
from torch import Tensor, nn

SEPARATOR = 0


class Favourite(nn.Module):
    """Gives the same logits of five tokens whatever it reads."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits.repeat(*tokens.shape, 1)


def test_no_token_is_drawn_more_often_in_a_row_than_the_longest_run() -> None:
    model = Favourite(-90.0, 0.0, 30.0, 0.0, 0.0)  # draws token 2, if it may
    drawn = generate(model, torch.tensor([1]), 16, SEPARATOR, Sampling(length=200))
    assert len(drawn) == 200
    assert max(len(list(run)) for _, run in groupby(drawn)) == LONGEST_RUN
    assert drawn.count(2) == 200 - 200 // (LONGEST_RUN + 1)


def test_a_run_that_the_prompt_begins_counts() -> None:
    model = Favourite(-90.0, 0.0, 30.0, 0.0, 0.0)
    drawn = generate(model, torch.full((LONGEST_RUN,), 2), 16, SEPARATOR, Sampling(length=1))
    assert drawn != [2]


def test_a_sample_ends_with_its_document() -> None:
    model = Favourite(30.0, 0.0, 0.0, 0.0, 0.0)
    assert generate(model, torch.tensor([1]), 16, SEPARATOR, Sampling(length=50)) == []


@pytest.mark.parametrize(
    ("top_p", "drawn"), [(0.3, {2}), (0.5, {2}), (0.6, {2, 4}), (0.9, {0, 2, 4}), (1.0, {0, 2, 3, 4})]
)
def test_only_the_most_probable_tokens_that_have_the_share_are_drawn(top_p: float, drawn: set[int]) -> None:
    probabilities = torch.tensor([0.125, 0.0, 0.5, 0.0625, 0.3125])
    generator = torch.Generator().manual_seed(0)
    assert {int(draw(probabilities.clone(), top_p, generator)) for _ in range(400)} == drawn


def test_temperature_makes_choices_safer() -> None:
    model = Favourite(-90.0, 0.0, 2.0, 0.0, 0.0)  # token 2 has 71 %, at half the temperature 95 %
    counts = [
        generate(model, torch.tensor([1]), 1, SEPARATOR, Sampling(300, temperature, top_p=1.0)).count(2)
        for temperature in (1.0, 0.5)
    ]
    assert 190 < counts[0] < 236
    assert 270 < counts[1] < 298


@pytest.mark.parametrize(
    ("text", "kept"),
    [("a\n    b\n    c = (d", "a\n    b"), ("a\n\n\n", "a"), ("one line", "one line"), ("a\n", "a"), ("", "")],
)
def test_a_text_ends_with_a_whole_line(text: str, kept: str) -> None:
    assert whole_lines(text) == kept
