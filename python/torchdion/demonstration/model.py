"""A small GPT of torch's own modules, and what it writes."""

import textwrap

import torch
from torch import Tensor, nn

from torchdion.demonstration.text import RARE, Vocabulary

PROMPT = "Return"
TEMPERATURE = 0.8
TOP_P = 0.8
"""Tokens are drawn from the most probable ones, as many as have this share together."""
LENGTH = 160
"""Tokens to draw."""
WIDTH = 75


class GPT(nn.Module):
    """Logits of the token after each of up to ``context`` ones.

    Args:
        vocabulary: how many tokens there are.
        context: the most that it sees at once.
    """

    def __init__(self, vocabulary: int, context: int, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Of ``tokens`` (sequences, length): (sequences, length, vocabulary)."""
        length = tokens.shape[1]
        after = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            x = block(x, src_mask=after, is_causal=True)
        logits: Tensor = self.head(self.norm(x))
        return logits


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
