"""What a trained model writes."""

import textwrap

import torch

from torchdion.demonstration.model import GPT
from torchdion.demonstration.text import RARE, Vocabulary

PROMPT = "Return"
TEMPERATURE = 0.8
TOP_P = 0.8
"""Tokens are drawn from the most probable ones, as many as have this share together."""
LENGTH = 160
"""Tokens to draw."""
WIDTH = 75


@torch.no_grad()
def sample(model: GPT, vocabulary: Vocabulary, seed: int, length: int = LENGTH) -> str:
    """``PROMPT`` and what follows it, up to the end of its last whole paragraph, in lines of ``WIDTH`` characters.

    Rare words are not drawn, as they have no letters, and no token is drawn twice in a row.
    """
    device = model.head.weight.device
    generator = torch.Generator().manual_seed(seed)
    tokens = vocabulary.encode("\n" + PROMPT)
    for _ in range(length):
        window = torch.tensor(tokens[-model.context :], device=device)
        logits = model(window[None])[0, -1].float().cpu()
        logits[[RARE, tokens[-1]]] = -torch.inf
        ordered, places = torch.softmax(logits / TEMPERATURE, dim=0).sort(descending=True)
        ordered[ordered.cumsum(0) - ordered > TOP_P] = 0
        tokens.append(int(places[torch.multinomial(ordered, 1, generator=generator)]))
    return whole_paragraphs(vocabulary.decode(tokens).strip())


def whole_paragraphs(text: str) -> str:
    """Without the last one, which may stop anywhere, if there is another; in lines."""
    whole, _, _ = text.rpartition("\n")
    return "\n".join(textwrap.fill(paragraph.strip(), WIDTH) for paragraph in (whole or text).splitlines())
