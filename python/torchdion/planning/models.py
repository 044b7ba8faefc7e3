"""Models of known shapes on the meta device, where parameters have no memory."""

import re
from dataclasses import dataclass

import torch
from torch import nn

LARGEST, MOST = 10**9, 10**5
"""Side of a matrix, and number of matrices, that --shapes takes."""


@dataclass(frozen=True)
class Transformer:
    """The sizes of a decoder: Llama's (gated MLP, norms with weights, grouped queries) or the paper's GPT.

    Args:
        kv_heads: of keys and values; None: as many as of queries.
        mlp: width of the MLP.
        is_llama: its MLP has three matrices and its norms have weights.
    """

    layers: int
    d_model: int
    heads: int
    mlp: int
    vocabulary: int
    kv_heads: int | None = None
    is_llama: bool = False


def _gpt(layers: int, d_model: int, heads: int) -> Transformer:
    return Transformer(layers, d_model, heads, 4 * d_model, 50304)


def _llama(layers: int, d_model: int, heads: int, mlp: int) -> Transformer:
    return Transformer(layers, d_model, heads, mlp, 128256, 8, True)


MODELS = {
    "gpt-120m": _gpt(12, 768, 6),
    "gpt-350m": _gpt(24, 1024, 32),
    "gpt-1.3b": _gpt(24, 2048, 32),
    "gpt-3b": _gpt(24, 3072, 32),
    "llama3-8b": _llama(32, 4096, 32, 14336),
    "llama3-70b": _llama(80, 8192, 64, 28672),
    "llama3-405b": _llama(126, 16384, 128, 53248),
}
"""The paper's models (arXiv 2504.05295, Appendix J) and those of Llama 3 (arXiv 2407.21783, Table 3)."""


def first_stage(sizes: Transformer, stages: int = 1, dtype: torch.dtype = torch.float32) -> nn.Module:
    """What the ranks of the first of so many pipeline stages hold: the fullest, as no other has more blocks.

    Args:
        stages: over which the blocks are shared out; the first also has the embedding, the last the head, of equal
            size. One stage has everything.

    Raises:
        ValueError: more stages than blocks.
    """
    if not 1 <= stages <= sizes.layers:
        raise ValueError(
            f"torchdion.plan: pp must be between 1 and the {sizes.layers} blocks of the model, got {stages}"
        )
    with torch.device("meta"):
        model = _llama_blocks(sizes, stages) if sizes.is_llama else _gpt_blocks(sizes, stages)
    return model.to(dtype)


def _linear(fan_out: int, fan_in: int) -> nn.Linear:
    return nn.Linear(fan_in, fan_out, bias=False)


def _gpt_blocks(sizes: Transformer, stages: int) -> nn.Module:
    """Named as examples/gpt/model.py names them."""
    d = sizes.d_model
    model = nn.Module()
    model.embedding = nn.Embedding(sizes.vocabulary, d)
    model.blocks = nn.ModuleList()
    for _ in range(-(-sizes.layers // stages)):
        block = nn.Module()
        block.attention = nn.ModuleDict({name: _linear(d, d) for name in ("query", "key", "value", "output")})
        block.mlp = nn.ModuleDict({"up": _linear(sizes.mlp, d), "down": _linear(d, sizes.mlp)})
        model.blocks.append(block)
    if stages == 1:
        model.head = _linear(sizes.vocabulary, d)
    return model


def _llama_blocks(sizes: Transformer, stages: int) -> nn.Module:
    """Named as transformers names them."""
    d, heads = sizes.d_model, sizes.heads
    of_values = (sizes.kv_heads or heads) * d // heads
    model = nn.Module()
    model.embed_tokens = nn.Embedding(sizes.vocabulary, d)
    model.layers = nn.ModuleList()
    for _ in range(-(-sizes.layers // stages)):
        layer = nn.Module()
        rows = {"q_proj": d, "k_proj": of_values, "v_proj": of_values, "o_proj": d}
        layer.self_attn = nn.ModuleDict({name: _linear(fan_out, d) for name, fan_out in rows.items()})
        layer.mlp = nn.ModuleDict({"gate_proj": _linear(sizes.mlp, d), "up_proj": _linear(sizes.mlp, d)})
        layer.mlp["down_proj"] = _linear(d, sizes.mlp)
        layer.input_layernorm, layer.post_attention_layernorm = nn.RMSNorm(d), nn.RMSNorm(d)
        model.layers.append(layer)
    if stages == 1:
        model.norm = nn.RMSNorm(d)
        model.lm_head = _linear(sizes.vocabulary, d)
    return model


def matrices(shapes: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Linears of the shapes in "4096x4096*32,11008x4096:colwise,4096x11008:rowwise".

    Each is ROWSxCOLUMNS (fan-out by fan-in), how many there are after ``*``, and how tensor parallelism cuts them after
    ``:``; those without are whole on every rank of tp.

    Raises:
        ValueError: another text.
    """
    model = nn.ModuleDict()
    for position, word in enumerate(shapes.split(",")):
        found = re.fullmatch(r"(\d+)x(\d+)(?:\*(\d+))?(?::(colwise|rowwise))?", word.strip())
        rows, columns, count = (int(number or 1) for number in found.groups()[:3]) if found else (0, 0, 0)
        if found is None or not (0 < rows <= LARGEST and 0 < columns <= LARGEST and 0 < count <= MOST):
            raise ValueError(
                "torchdion.plan: shapes must be ROWSxCOLUMNS[*COUNT][:colwise|:rowwise], separated by commas, with "
                f"sides up to {LARGEST} and counts up to {MOST}, got {word!r}"
            )
        style = found.group(4)
        with torch.device("meta"):
            alike = nn.ModuleList(_linear(rows, columns) for _ in range(count))
        model["-".join(filter(None, (str(position), f"{rows}x{columns}", style)))] = alike.to(dtype)
    return model


PLAN_OF_MATRICES = {"*-colwise.*": "colwise", "*-rowwise.*": "rowwise"}
"""The tensor-parallel plan of :func:`matrices`."""
