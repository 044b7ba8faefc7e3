"""Routes the parameters of a model to their update rules, as Table 1 of the paper does."""

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from torchdion.options import check_options

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LINEAR_OF_GPT2 = "Conv1D"  # transformers': a Linear of weight (in, out); by name, because its import costs seconds
_KINDS = ("matrix", "convolution", "transposed", "embedding", "vector", "head")  # the order of the groups
_HEAD_NAMES = ("lm_head", "head", "unembed", "unembedding", "embed_out", "output_projection")


def param_groups(
    model: nn.Module,
    *,
    weight_decay: float = 0.01,
    scalar_algorithm: str = "lion",
    head: str | Iterable[str] | None = None,
) -> list[dict[str, Any]]:
    """Groups for :class:`torchdion.Dion` by the kind of each parameter (arXiv 2504.05295, Section 3.2 and Table 1).

    ==============================  ===================  ==================  ============
    parameter                       algorithm            ``lr_multiplier``        weight decay
    ==============================  ===================  ==================  ============
    matrices, convolutions          dion                 1 (and sqrt(m/n))   weight_decay
    embeddings                      scalar_algorithm     1                   0
    the LM head, d_in wide          scalar_algorithm     1 / sqrt(d_in)      0
    biases, norms, other vectors    scalar_algorithm     1                   0
    ==============================  ===================  ==================  ============

    Args:
        model: its trainable parameters are routed, each once; an embedding tied to the head counts as the head.
        weight_decay: λ of the matrices.
        scalar_algorithm: "lion" or "adamw" for what is no matrix.
        head: the module name or names of the output layer. None: every Linear called lm_head, head, unembed,
            unembedding, embed_out or output_projection; where there is none, every Linear whose out_features is the
            num_embeddings of an Embedding.

    Returns:
        Groups with named parameters (``params`` holds (name, parameter) pairs) and a ``kind`` key that says what
        they are.

    Raises:
        ValueError: ``head`` names no module with a weight, or another option is out of its range.
        TypeError: ``model`` is no module.

    Example:
        >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 10))
        >>> [(g["kind"], g["algorithm"], g["lr_multiplier"]) for g in param_groups(model)]
        [('matrix', 'dion', 1.0), ('embedding', 'lion', 1.0), ('vector', 'lion', 1.0), ('head', 'lion', 0.5)]
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"torchdion.param_groups: model must be a torch.nn.Module, got {type(model).__name__}")
    check_options({"scalar_algorithm": scalar_algorithm, "weight_decay": weight_decay}, " (param_groups)")
    heads = _head_weights(model, head)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    seen: set[int] = set()
    for kind in _KINDS:
        for owner, name, param in _owned_parameters(model):
            if not param.requires_grad or id(param) in seen or _kind(owner, param, heads) != kind:
                continue
            seen.add(id(param))
            lr_multiplier = 1 / math.sqrt(param.shape[1]) if kind == "head" else 1.0
            options = _options(kind, weight_decay, scalar_algorithm, lr_multiplier)
            key = tuple(options.values())
            groups.setdefault(key, {"params": [], **options})["params"].append((name, param))
    return list(groups.values())


def _options(kind: str, weight_decay: float, scalar_algorithm: str, lr_multiplier: float) -> dict[str, Any]:
    is_matrix = kind in ("matrix", "convolution", "transposed")
    options: dict[str, Any] = {
        "kind": "matrix" if kind == "convolution" else kind,
        "algorithm": "dion" if is_matrix else scalar_algorithm,
        "lr_multiplier": lr_multiplier,
        "weight_decay": weight_decay if is_matrix else 0.0,
    }
    if kind in ("convolution", "transposed"):  # elsewhere a third dimension may count experts: Dion warns of it
        options |= {"batch_dims": 0, "fan_in_first": kind == "transposed"}
    return options


def _owned_parameters(model: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    return [
        (module, f"{prefix}.{name}" if prefix else name, param)
        for prefix, module in model.named_modules()
        for name, param in module.named_parameters(recurse=False)
    ]


def _kind(owner: nn.Module, param: Tensor, heads: set[int]) -> str:
    if id(param) in heads:
        return "head"
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding"
    if param.dim() < 2:
        return "vector"
    if isinstance(owner, _TRANSPOSED) or type(owner).__name__ == _LINEAR_OF_GPT2:
        return "transposed"
    if isinstance(owner, _CONVOLUTIONS):
        return "convolution"
    return "matrix"


def _head_weights(model: nn.Module, head: str | Iterable[str] | None) -> set[int]:
    """The ids of the output layers' weights; an id lives only as long as this call to param_groups."""
    modules = dict(model.named_modules())
    if head is not None:
        names = list(head) if isinstance(head, Iterable) and not isinstance(head, str) else [head]
        for name in names:
            if not isinstance(getattr(modules.get(name), "weight", None), Tensor):
                raise ValueError(f"torchdion.param_groups: head must name a module with a weight, got {name!r}")
        return {id(modules[name].weight) for name in names}
    linears = {name: module for name, module in modules.items() if isinstance(module, nn.Linear)}
    named = {id(module.weight) for name, module in linears.items() if name.rpartition(".")[2] in _HEAD_NAMES}
    if named:  # an MLP may be as wide as the vocabulary of bytes is large
        return named
    vocabularies = {m.num_embeddings for m in modules.values() if isinstance(m, nn.Embedding)}
    return {id(module.weight) for module in linears.values() if module.out_features in vocabularies}
