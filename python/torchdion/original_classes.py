"""The classes of modules that scripting, tracing or exporting has left without their types."""

from collections.abc import Iterator
from typing import Any

from torch import fx, jit, nn

from torchdion.torch_versions import UnflattenedModule

# Operator of a graph that reads a module's weight → the class of torch.nn that calls it.
_CLASSES = {
    "embedding": "Embedding",
    "embedding_bag": "EmbeddingBag",
    "linear": "Linear",
    **{f"conv{dims}d": f"Conv{dims}d" for dims in (1, 2, 3)},
    **{f"conv_transpose{dims}d": f"ConvTranspose{dims}d" for dims in (1, 2, 3)},
    **dict.fromkeys(("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "batch_norm"), "LayerNorm"),
}
# Between a weight and its use: a transposition, of which a product is a Linear, a copy, a fake quantization.
_TRANSPOSED = ("t", "permute", "transpose")
_COPIED = ("to", "_to_copy", "alias", "detach", "clone")
_PRODUCTS = ("mm", "addmm", "matmul", "bmm")
_MOST_STEPS = 4  # between them


def original_classes(model: nn.Module) -> dict[str, str]:
    """Name of a module → its class, without packages, where its type does not say it."""
    classes: dict[str, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, jit.ScriptModule):
            classes[name] = str(module.original_name)
        elif isinstance(module, UnflattenedModule):
            classes[name] = str(module.type_name()).rpartition(".")[2]
        elif isinstance(module, fx.GraphModule):
            prefix = f"{name}." if name else ""
            classes |= {prefix + path: found for path, found in _classes_in(module) if _is_plain(module, path)}
    return classes


def _is_plain(whole: nn.Module, path: str) -> bool:
    try:
        return type(whole.get_submodule(path)) is nn.Module
    except AttributeError:  # called in the graph's past, and no module since
        return False


def _classes_in(whole: fx.GraphModule) -> Iterator[tuple[str, str]]:
    """Reads the modules that its nodes remember, then the operators that read weights, which count more."""
    for node in whole.graph.nodes:
        for path, made_by in node.meta.get("nn_module_stack", {}).values():
            yield path, (made_by if isinstance(made_by, str) else made_by.__name__).rpartition(".")[2]
    for node in whole.graph.nodes:
        path, _, key = str(node.target).rpartition(".")
        found = _use_of(node, _MOST_STEPS) if node.op == "get_attr" and key == "weight" else None
        if found is not None:
            yield path, found


def _use_of(node: fx.Node, steps: int, is_transposed: bool = False) -> str | None:
    for user in node.users:
        operation = _operation_of(user)
        if operation in _CLASSES:
            return _CLASSES[operation]
        if operation == "convolution":  # in the core operators, of every kind
            return "ConvTranspose2d" if user.args[6] else "Conv2d"
        if operation in _PRODUCTS:
            return "Linear" if is_transposed else "Conv1D"  # GPT-2's, of weight (in, out)
        is_passed = user.op == "call_module" or operation in _COPIED or "quantize" in operation
        if steps > 0 and (is_passed or operation in _TRANSPOSED):
            found = _use_of(user, steps - 1, is_transposed != (operation in _TRANSPOSED))
            if found is not None:
                return found
    return None


def _operation_of(node: fx.Node) -> str:
    """ "linear" of both torch.nn.functional.linear and aten.linear.default."""
    if node.op == "call_method":
        return str(node.target)
    target: Any = node.target
    return str(getattr(target, "__name__", "")).partition(".")[0] if node.op == "call_function" else ""
