"""A model as the rules of routing (csrc/routing) look at it."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from torchdion import _C
from torchdion.dtensor import is_dtensor
from torchdion.original_classes import original_classes
from torchdion.torch_versions import WeightNorm as _WeightNorm

_LAYERS: tuple[tuple[str, tuple[type[nn.Module], ...]], ...] = (
    ("linear", (nn.Linear,)),
    ("embedding", (nn.Embedding,)),
    ("embedding_bag", (nn.EmbeddingBag,)),
    ("convolution", (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Bilinear)),
    ("transposed_convolution", (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)),
    ("attention", (nn.MultiheadAttention,)),
)
_LINEAR_OF_GPT2 = "Conv1D"  # transformers': a Linear of weight (in, out); by name, because its import costs seconds


class Owned(NamedTuple):
    """A parameter where it lies in a model."""

    owner: nn.Module  # of the weight that it is, or parametrizes
    key: str  # its name there
    name: str  # in the model
    param: Tensor


Group = tuple[str, dict[str, Any], list[Owned]]
"""Its kind, options that say how its matrices lie, and its parameters."""


def routed(model: nn.Module, heads: list[str] | None, strict: bool) -> tuple[list[Group], list[str]]:
    """The groups of a model's parameters, and warnings; looks at every module once.

    Args:
        heads: as of param_groups(); of these the weights that they show are looked at, beside those of torch's layers.
    """
    modules = dict(model.named_modules())
    numbers = {id(module): number for number, module in enumerate(modules.values())}
    declared = [numbers[id(layer)] for layer in _declared(modules.values()) if id(layer) in numbers]
    owned = list(_owned_parameters(model))
    classes = original_classes(model)
    facts = [_facts(name, module, classes.get(name)) for name, module in modules.items()]
    for number, (name, module) in enumerate(modules.items()):
        if isinstance(module, (nn.Linear, nn.Embedding)) or number in declared or name in (heads or ()):
            facts[number]["shown_weight"] = _shown_weight(module)
    parameters = [
        {
            "owner": numbers[id(one.owner)],
            "key": one.key,
            "name": one.name,
            "id": id(one.param),
            "sizes": list(one.param.shape),
            "is_trained": one.param.requires_grad,
            "cut_dims": _cut_dims(one.param),
        }
        for one in owned
    ]
    groups, warnings = _C.route(facts, parameters, declared, list(_absent(modules)), heads, strict)
    return [(kind, form, [owned[index] for index in members]) for kind, form, members in groups], warnings


def _owned_parameters(model: nn.Module) -> Iterator[Owned]:
    """In the order of their modules, more than once where modules share them."""
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


def _absent(modules: dict[str, nn.Module]) -> Iterator[str]:
    """The names of modules that were removed, as the stages of pipelines do it: model.lm_head = None."""
    for prefix, module in modules.items():
        for key, child in module._modules.items():
            if child is None:
                yield f"{prefix}.{key}" if prefix else key


def _facts(name: str, module: nn.Module, original_class: str | None) -> dict[str, Any]:
    layer = next((layer for layer, types in _LAYERS if isinstance(module, types)), "other")
    is_named = any(base.__name__ == _LINEAR_OF_GPT2 for base in type(module).__mro__)
    if is_named and layer in ("other", "linear"):
        layer = "transposed_convolution"
    width = module.out_features if isinstance(module, nn.Linear) else getattr(module, "num_embeddings", 0)
    class_name = type(module).__name__ if original_class is None else original_class
    is_counted = layer in ("linear", "embedding")
    facts = {"name": name, "class_name": class_name, "layer": layer, "width": width if is_counted else 0}
    if not any(True for _ in module.parameters(recurse=False)) and not hasattr(module, "parametrizations"):
        return facts
    experts = getattr(module, "moe_num_experts", None)
    return facts | {
        "experts": experts if isinstance(experts, int) and experts > 0 else 0,
        "gate_up_proj": _sizes(getattr(module, "gate_up_proj", None)),
        "down_proj": _sizes(getattr(module, "down_proj", None)),
        "is_transposed": getattr(module, "is_transposed", False) is True,
        "is_concatenated": bool(getattr(module, "is_concatenated", True)),
    }


def _sizes(value: Any) -> list[int]:
    return list(value.shape) if isinstance(value, Tensor) else []


def _shown_weight(module: nn.Module) -> int:
    """The id of a weight that a wrapper shows as its own; 0: it shows none, or has or computes it."""
    if "weight" in module._parameters or hasattr(module, "parametrizations"):
        return 0
    weight = getattr(module, "weight", None)
    return id(weight) if isinstance(weight, nn.Parameter) and weight.dim() >= 2 else 0


def _declared(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """What transformers' models, whole or inside of another, say of themselves: a layer, or what holds several."""
    for module in modules:
        get_output_embeddings = getattr(module, "get_output_embeddings", None)
        if callable(get_output_embeddings):
            with suppress(NotImplementedError, AttributeError):  # models that have none
                layer = get_output_embeddings()
                if isinstance(layer, nn.Module):
                    yield layer


def _cut_dims(param: Tensor) -> list[int]:
    if not is_dtensor(param):
        return []
    mesh = param.device_mesh
    cuts = [placement for dim, placement in enumerate(param.placements) if mesh.size(dim) > 1]
    return [placement.dim for placement in cuts if hasattr(placement, "dim")]
