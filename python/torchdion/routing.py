"""Routes the parameters of a model to their update rules, as Table 1 of the paper does."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from torchdion.modules import routed
from torchdion.options import check_options
from torchdion.warning import warn
from torchdion.words import shown, speaking_as


@speaking_as("torchdion.param_groups")
def param_groups(
    model: nn.Module,
    *,
    weight_decay: float = 0.01,
    scalar_algorithm: str = "lion",
    head: str | Iterable[str] | None = None,
    strict: bool = False,
) -> list[dict[str, Any]]:
    """Groups for every optimizer here by the kind of each parameter (arXiv 2504.05295, Section 3.2 and Table 1).

    ==============================  ===================  ==================  ============
    parameter                       algorithm            ``lr_multiplier``   weight decay
    ==============================  ===================  ==================  ============
    matrices, convolutions          the optimizer's own  1 (and sqrt(m/n))   weight_decay
    embeddings                      scalar_algorithm     1                   0
    the output layer, d_in wide     scalar_algorithm     1 / sqrt(d_in)      0
    biases, norms, other vectors    scalar_algorithm     1                   0
    ==============================  ===================  ==================  ============

    Layers are known by their types; layers of other packages, and of models that were scripted, traced or exported, by
    their classes (``ColumnParallelLinear``, ``VocabParallelEmbedding``), by what a graph does with their weights, by a
    bias, and else by their names (``wte``, ``q_proj``, ``lm_head``). PEFT's adapters are known by their names:
    ``trainable_tokens_delta`` is an embedding, OFT's packed blocks are vectors.

    Raw parameters that only look like matrices are vectors, by their names: learned positions, class, mask and query
    tokens, biases and scales of several dimensions, feature planes, gains of ``weight_norm``, ``A_log`` and ``D`` of
    state space models, RWKV's ``time_...``. The three matrices of ``nn.MultiheadAttention.in_proj_weight`` are updated
    each by itself (``blocks=3``). Parameters of experts with three or more dimensions are stacks (``batch_dims``, with
    ``skip_zero_gradients``; ``fan_in_first`` where they are (experts, in, out), else ``gate_up_proj`` has
    ``blocks=2``); DBRX's, of two dimensions, have one of ``blocks`` for each.

    Other raw parameters of three or more dimensions are taken for what their shape says, and one warning names them:
    stacks (layers, heads, m, n) where no dimension in front of the last two is longer than these (``batch_dims=2``
    there), kernels (out, in, k, k) and (copies, out, in, k, k), and of three dimensions one matrix each
    (``batch_dims=0``) where the name says that they are matrices. What neither a layer nor a name nor a shape tells has
    ``kind="unknown"`` and the rule of vectors, and the same warning names it. To say otherwise, change its group:
    delete ``algorithm`` from that of a matrix, and set ``batch_dims`` in that of a stack.

    A weight that several stages of a pipeline hold, an embedding on the first and the output layer on the last, needs
    one rule on all of them: give ``head`` on each stage, the embedding's name on the first. Both copies then have the
    factor 1 / sqrt(d_in), and equal gradients keep them equal. A warning says so where a model has an output layer
    without a bias and no embedding, or an embedding whose output layer was set to None.

    Args:
        model: its trainable parameters are routed, each once; an embedding tied to the head counts as the head.
        weight_decay: λ of the matrices.
        scalar_algorithm: "lion" or "adamw" for what is no matrix.
        head: the module name or names of the output layer. None: what the model's get_output_embeddings() returns or
            holds, every Linear tied to an Embedding, every one called lm_head, head, head_dist, unembed, unembedding,
            embed_out or output_projection, and ``output`` or ``output_layer`` of the model itself. Where there is none:
            the last Linear with as many outputs as the largest embedding of tokens has entries, with a warning if there
            are several. Else the last Linear of each child of the model that is called classifier, classification_head,
            cls_classifier, distillation_classifier, classifier_distill, logits_proj, qa_outputs, qa_classifier or
            answer_head, or else head, heads, head_dist, score or fc and stands at the end. Of a weight that is computed
            (weight_norm, spectral_norm, other parametrizations) it is what it is computed from. []: there is none.
        strict: refuse a model of which the warning about shapes and unknown parameters would speak.

    Returns:
        Groups with named parameters (``params`` holds (name, parameter) pairs) and a ``kind`` key that says what
        they are.

    Raises:
        ValueError: ``head`` names no module with a weight of two or more dimensions, another option is out of its
            range, or ``strict`` and something is guessed or unknown.
        TypeError: ``model`` is no module, ``strict`` no bool.

    Example:
        >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 10))
        >>> [(g["kind"], g.get("algorithm"), g["lr_multiplier"]) for g in param_groups(model)]
        [('matrix', None, 1.0), ('embedding', 'lion', 1.0), ('vector', 'lion', 1.0), ('head', 'lion', 0.5)]
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"torchdion.param_groups: model must be a torch.nn.Module, got {type(model).__name__}")
    check_options({"scalar_algorithm": scalar_algorithm, "weight_decay": weight_decay}, "")
    names = None if head is None else [head] if isinstance(head, str) or not isinstance(head, Iterable) else list(head)
    for name in names or ():
        if not isinstance(name, str):
            raise ValueError(
                "torchdion.param_groups: head must name a module with a weight of two or more dimensions, got "
                f"{shown(name)}"
            )
    if not isinstance(strict, bool):
        raise TypeError(f"torchdion.param_groups: strict must be True or False, got {shown(strict)}")
    groups, warnings = routed(model, names, strict)
    for warning in warnings:
        warn(warning)
    of_matrices: dict[str, Any] = {"weight_decay": weight_decay}
    of_others = {"algorithm": scalar_algorithm, "weight_decay": 0.0}
    return [
        {
            "params": [(one.name, one.param) for one in members],
            "kind": kind,
            **(of_matrices if kind in ("matrix", "transposed") else of_others),
            **form,
        }
        for kind, form, members in groups
    ]
