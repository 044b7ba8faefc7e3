"""Routes the parameters of a model to their update rules, as Table 1 of the paper does."""

import math
from collections.abc import Iterable
from typing import Any

from torch import nn

from torchdion.heads import head_weights
from torchdion.kinds import Owned, is_cut_along_blocks, is_embedding, kind_of, owned_parameters
from torchdion.options import ScalarAlgorithm, check_options
from torchdion.warning import warn

# The order of the groups, and what their "kind" says.
_KINDS = {
    "matrix": "matrix",
    "convolution": "matrix",
    "fused": "matrix",
    "stack": "matrix",
    "transposed": "transposed",
    "embedding": "embedding",
    "vector": "vector",
    "head": "head",
}


def param_groups(
    model: nn.Module,
    *,
    weight_decay: float = 0.01,
    scalar_algorithm: ScalarAlgorithm = "lion",
    head: str | Iterable[str] | None = None,
) -> list[dict[str, Any]]:
    """Groups for :class:`torchdion.Dion` by the kind of each parameter (arXiv 2504.05295, Section 3.2 and Table 1).

    ==============================  ===================  ==================  ============
    parameter                       algorithm            ``lr_multiplier``   weight decay
    ==============================  ===================  ==================  ============
    matrices, convolutions          dion                 1 (and sqrt(m/n))   weight_decay
    embeddings                      scalar_algorithm     1                   0
    the output layer, d_in wide     scalar_algorithm     1 / sqrt(d_in)      0
    biases, norms, other vectors    scalar_algorithm     1                   0
    ==============================  ===================  ==================  ============

    Raw parameters that only look like matrices are vectors, by their names: learned positions, class, mask and query
    tokens, biases and scales of several dimensions, gains of ``weight_norm``, ``A_log`` and ``D`` of state space
    models, RWKV's ``time_...``. The three matrices of ``nn.MultiheadAttention.in_proj_weight`` are updated each by
    itself (``blocks=3``). Three-dimensional parameters of experts are stacks (``batch_dims=1``, with
    ``skip_zero_gradients``; ``fan_in_first`` where they are (experts, in, out), else ``gate_up_proj`` has
    ``blocks=2``).

    Args:
        model: its trainable parameters are routed, each once; an embedding tied to the head counts as the head.
        weight_decay: λ of the matrices.
        scalar_algorithm: "lion" or "adamw" for what is no matrix.
        head: the module name or names of the output layer. None: what the model's get_output_embeddings() returns,
            every Linear tied to an Embedding, every one called lm_head, head, unembed, unembedding, embed_out or
            output_projection, and ``output`` of the model itself. Where there is none: the last Linear with as many
            outputs as the largest embedding of tokens has entries, with a warning if there are several. Else the last
            Linear of all, if the model calls it, or what it is the last of, head, heads, classifier,
            classification_head, score, fc or qa_outputs.

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
    heads = head_weights(model, head)
    routes = _routes(model, heads)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    cut = []
    for kind in _KINDS:
        for owned, form in (route[::2] for route in routes if route[1] == kind):
            if is_cut_along_blocks(owned, form):
                cut.append(owned.name)
                form = {**form, "blocks": 1}
            lr_multiplier = 1 / math.sqrt(owned.param.shape[1]) if kind == "head" else 1.0
            options = _options(kind, weight_decay, scalar_algorithm, lr_multiplier) | form
            group = groups.setdefault((kind, *options.values()), {"params": [], **options})
            group["params"].append((owned.name, owned.param))
    if cut:
        warn(
            f"torchdion.param_groups: {cut[0]!r} ({len(cut)} in all) holds fused matrices and is cut along them, so "
            "that they are updated as one matrix, unlike on one process; a cut of its columns leaves them apart"
        )
    return list(groups.values())


def _routes(model: nn.Module, heads: set[int]) -> list[tuple[Owned, str, dict[str, Any]]]:
    """Every trainable parameter once, by the first module that has it; an embedding is one whoever shares it."""
    routes: dict[int, tuple[Owned, str, dict[str, Any]]] = {}
    for owned in owned_parameters(model):
        key = id(owned.param)
        if not owned.param.requires_grad or (key in routes and not is_embedding(owned)):
            continue
        first = routes[key][0] if key in routes else owned
        routes[key] = (first, "head", {}) if key in heads else (first, *kind_of(owned))
    return list(routes.values())


def _options(kind: str, weight_decay: float, scalar_algorithm: str, lr_multiplier: float) -> dict[str, Any]:
    is_matrix = _KINDS[kind] in ("matrix", "transposed")
    return {
        "kind": _KINDS[kind],
        "algorithm": "dion" if is_matrix else scalar_algorithm,
        "lr_multiplier": lr_multiplier,
        "weight_decay": weight_decay if is_matrix else 0.0,
    }
