"""What a parameter is, by the module that owns it and by its name: a matrix, in which form, or none."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from torchdion.dtensor import cuts_of, is_dtensor
from torchdion.torch_versions import WeightNorm as _WeightNorm

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Bilinear)
_LINEAR_OF_GPT2 = "Conv1D"  # transformers': a Linear of weight (in, out); by name, because its import costs seconds

# The tables of names stand in csrc/optim/kinds.cpp too, row by row.
_EXPERTS = ("gate_up_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
# What has several dimensions and is no matrix: vectors that are looked up or added, and factors entry by entry.
_NO_MATRIX = (
    r"bias|^rpb$",  # of positions and of experts; DiNAT calls those of relative positions rpb
    r"(^|_)pos(_|$)|(^|_)position|encoding",
    r"emb(ed(ding)?s?)?\d*(_|$)",  # of classes and masks; VITS' emb_rel_k, of relative positions
    r"token|table|prompt|latent|probe|registers?$|codebook|codevector|^quer(y|ies)$",
    r"^(?![wW]_)(\w*_)?(scale|gain|gamma|beta|alpha|lambda|temperature)_?\d*$|logit_scale",  # w_beta is a gate
    r"^A_logs?$|^Ds?$|^dt_b",  # decays of state space models
    r"^time_(?!\w*_w\d)",  # RWKV's factors, whose time_..._w1 are matrices
)
_GAIN = r"weight\w*_g$"  # of weight_norm; a gate may be called W_g
_PROJECTION = r"proj(ection)?(_weight)?$"  # a matrix, whatever it projects: prompts, positions, dt
_IS_GAIN = re.compile(_GAIN)
_IS_NO_MATRIX = re.compile("|".join(_NO_MATRIX))
_IS_PROJECTION = re.compile(_PROJECTION)


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
            yield Owned(owner, "weight_g" if is_gain else weight, name, param)


def is_embedding(owned: Owned) -> bool:
    if isinstance(owned.owner, (nn.Embedding, nn.EmbeddingBag)):
        return True
    return owned.key == "weight" and "Embedding" in type(owned.owner).__name__


def is_gain(key: str) -> bool:
    """Whether weight_norm has given a parameter this name: the lengths of its directions."""
    return _IS_GAIN.search(key) is not None


def kind_of(owned: Owned) -> tuple[str, dict[str, Any]]:
    """What a parameter is, and the options of its form.

    Returns:
        "matrix", "convolution", "fused", "stack", "transposed" or "guessed" for matrices, "embedding", or "vector" for
        all else.
    """
    owner, key, _, param = owned
    if is_embedding(owned):
        return "embedding", {}
    if param.dim() < 2 or is_gain(key):
        return "vector", {}
    if isinstance(owner, _CONVOLUTIONS):
        return "convolution", {"batch_dims": 0, "fan_in_first": False}
    if isinstance(owner, _TRANSPOSED) or any(base.__name__ == _LINEAR_OF_GPT2 for base in type(owner).__mro__):
        return "transposed", {"batch_dims": 0, "fan_in_first": True}
    if isinstance(owner, nn.Linear) and key.startswith("weight") and param.dim() == 2:
        return "matrix", {}
    if isinstance(owner, nn.MultiheadAttention) and key == "in_proj_weight":
        return "fused", {"blocks": 3}
    if _is_no_matrix(owned):
        return "vector", {}
    if param.dim() == 2 and _are_experts_of_dbrx(owner, key, param):
        return "stack", {"batch_dims": 0, "blocks": owner.moe_num_experts, "skip_zero_gradients": True}
    if param.dim() == 3 and _are_experts(owned):
        return "stack", _form_of_experts(owner, key, param)
    return ("guessed", _guessed_form(param)) if param.dim() == 3 else ("matrix", {})


def is_cut_along_blocks(owned: Owned, options: dict[str, Any]) -> bool:
    """Whether a DTensor is cut along the rows of its fused matrices, which the engine does not follow."""
    if options.get("blocks", 1) == 1 or not is_dtensor(owned.param):
        return False
    return options.get("batch_dims", 0) in cuts_of(owned.param, owned.name)


def _is_no_matrix(owned: Owned) -> bool:
    owner, key, name, param = owned
    if sum(size > 1 for size in param.shape) <= 1 or "norm" in type(owner).__name__.lower():
        return True
    if key.isdigit() and "." in name:  # of a ParameterList
        key = name.split(".")[-2]
    return _IS_NO_MATRIX.search(key) is not None and _IS_PROJECTION.search(key) is None


def _are_experts(owned: Owned) -> bool:
    return owned.key in _EXPERTS or "expert" in f"{owned.name} {type(owned.owner).__name__}".lower()


def _are_experts_of_dbrx(owner: nn.Module, key: str, param: Tensor) -> bool:
    """Those of DBRX lie below one another in two dimensions, (experts · ffn, hidden).

    So do those of w2, whose fan-in comes first; but blocks cannot say so, and its shape factor is that of w1.
    """
    experts = getattr(owner, "moe_num_experts", None)
    return key in ("w1", "v1", "w2") and isinstance(experts, int) and experts > 0 and param.shape[0] % experts == 0


def _guessed_form(param: Tensor) -> dict[str, Any]:
    """A stack has fewer matrices than they have rows or columns; kernels and (width, heads, head) have more."""
    is_stack = param.shape[0] <= min(param.shape[1:])
    return {"batch_dims": int(is_stack), "fan_in_first": False}


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
