"""What a parameter is, by the module that owns it and by its name: a matrix, in which form, or none."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import ParametrizationList

from torchdion.dtensor import cuts_of, is_dtensor

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Bilinear)
_LINEAR_OF_GPT2 = "Conv1D"  # transformers': a Linear of weight (in, out); by name, because its import costs seconds
_EXPERTS = ("gate_up_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")

# Names of what has several dimensions and is no matrix. Vectors that are looked up or added: biases, embeddings of
# positions, of classes and of masks, tables of relative positions, queries, prompts, codebooks. Factors entry by entry:
# gains, and the decays of state space models (A_log, D, dt_bias) and of RWKV, whose time_..._w1 are matrices.
_NO_MATRIX = re.compile(
    r"bias|embed|position|rel_pos|pos_enc|encoding|token|table|prompt|latent|probe|registers?$|codebook|codevector"
    r"|^quer(y|ies)$|(^|_)(scale|gain|gamma|beta|alpha|lambda|temperature)_?\d*$|logit_scale"
    r"|^A_logs?$|^Ds?$|^dt_|^time_(?!\w*_w\d)"
)


class Owned(NamedTuple):
    """A parameter where it lies in a model."""

    owner: nn.Module  # of the weight that it is, or parametrizes
    key: str  # its name there
    name: str  # in the model
    param: Tensor


def owned_parameters(model: nn.Module) -> Iterator[Owned]:
    """The model's parameters in the order of their modules, more than once where modules share them."""
    for prefix, module in model.named_modules():
        for key, param in module.named_parameters(recurse=False):
            name = f"{prefix}.{key}" if prefix else key
            if not isinstance(module, ParametrizationList):
                yield Owned(module, key, name, param)
                continue
            path, _, weight = prefix.rpartition(".")  # "layer.parametrizations.weight"
            owner = model.get_submodule(path.removesuffix("parametrizations").removesuffix("."))
            is_gain = key == "original0" and isinstance(module[0], _WeightNorm)
            yield Owned(owner, f"{weight}_g" if is_gain else weight, name, param)


def is_embedding(owned: Owned) -> bool:
    if isinstance(owned.owner, (nn.Embedding, nn.EmbeddingBag)):
        return True
    return owned.key == "weight" and "Embedding" in type(owned.owner).__name__


def kind_of(owned: Owned) -> tuple[str, dict[str, Any]]:
    """What a parameter is, and the options of its form.

    Returns:
        "matrix", "convolution", "fused", "stack" or "transposed" for matrices, "embedding", or "vector" for all else.
    """
    owner, key, _, param = owned
    if is_embedding(owned):
        return "embedding", {}
    if param.dim() < 2 or key.endswith("_g"):  # a gain of weight_norm
        return "vector", {}
    if isinstance(owner, _TRANSPOSED) or type(owner).__name__ == _LINEAR_OF_GPT2:
        return "transposed", {"batch_dims": 0, "fan_in_first": True}
    if isinstance(owner, _CONVOLUTIONS):
        return "convolution", {"batch_dims": 0, "fan_in_first": False}
    if isinstance(owner, nn.Linear) and key.startswith("weight"):
        return "matrix", {}
    if isinstance(owner, nn.MultiheadAttention) and key == "in_proj_weight":
        return "fused", {"blocks": 3}
    if _is_no_matrix(owner, key, param):
        return "vector", {}
    if param.dim() == 3 and _are_experts(owned):
        return "stack", _form_of_experts(owner, key, param)
    return "matrix", {}  # of three dimensions it may be a convolution or a stack: Dion warns of it


def is_cut_along_blocks(owned: Owned, options: dict[str, Any]) -> bool:
    """Whether a DTensor is cut along the rows of its fused matrices, which the engine does not follow."""
    if options.get("blocks", 1) == 1 or not is_dtensor(owned.param):
        return False
    return options.get("batch_dims", 0) in cuts_of(owned.param, owned.name)


def _is_no_matrix(owner: nn.Module, key: str, param: Tensor) -> bool:
    has_one_long_side = sum(size > 1 for size in param.shape) <= 1
    return has_one_long_side or "norm" in type(owner).__name__.lower() or _NO_MATRIX.search(key) is not None


def _are_experts(owned: Owned) -> bool:
    return owned.key in _EXPERTS or "expert" in f"{owned.name} {type(owned.owner).__name__}".lower()


def _form_of_experts(owner: nn.Module, key: str, param: Tensor) -> dict[str, Any]:
    fan_in_first = _is_fan_in_first(owner)
    options = {"batch_dims": 1, "fan_in_first": fan_in_first, "skip_zero_gradients": True}
    # Fused along the columns (Llama 4) or interleaved (GPT-OSS) they are one matrix.
    is_fused = key == "gate_up_proj" and getattr(owner, "is_concatenated", True) and param.shape[1] % 2 == 0
    return options | {"blocks": 2} if is_fused and not fan_in_first else options


def _is_fan_in_first(owner: nn.Module) -> bool:
    """Whether stacks are (experts, in, out): by sizes where one is fused, else by transformers' mark."""
    fused, plain = getattr(owner, "gate_up_proj", None), getattr(owner, "down_proj", None)
    if isinstance(fused, Tensor) and isinstance(plain, Tensor) and fused.dim() == plain.dim() == 3:
        (_, first, second), (_, rows, columns) = fused.shape, plain.shape
        if (first, second) == (columns, 2 * rows):
            return True
        if (first, second) == (2 * columns, rows):
            return False
    return getattr(owner, "is_transposed", False) is True
