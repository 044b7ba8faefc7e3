"""A small GPT of torch's own modules."""

import torch
from torch import Tensor, nn


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
