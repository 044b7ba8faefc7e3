"""Finds the output layers of a model, whose weights are no matrices to Dion."""

import re
from collections.abc import Iterable
from contextlib import suppress

from torch import Tensor, nn

from torchdion.warning import warn
from torchdion.words import shown

_HEADS = ("lm_head", "head", "unembed", "unembedding", "embed_out", "output_projection")
_TOP_LEVEL_HEAD = "output"  # torchtitan's; deeper in a model it is the name of any layer's output
_CLASSIFIERS = ("head", "heads", "classifier", "classification_head", "score", "fc", "qa_outputs")
# What wrappers add to the names of modules: anywhere, and in front of all.
_INSERTED = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_WRAPPED = ("model", "base_model", "net")
# Embeddings that count something else than tokens: positions, segments, times, codes, masks.
_NO_VOCABULARY = re.compile(r"pos|wpe|type|seg|relative|rel_|time|code|quant|level|layer|speaker|lang|mask|point|query")

Linears = dict[str, nn.Linear]


def head_weights(model: nn.Module, head: str | Iterable[str] | None) -> set[int]:
    """The ids of the output layers' weights; an id lives only as long as this call to param_groups.

    Raises:
        ValueError: ``head`` names no module with a weight.
    """
    modules = dict(model.named_modules())
    if head is not None:
        return _given(modules, head)
    linears = {name: module for name, module in modules.items() if isinstance(module, nn.Linear)}
    known = _declared(modules.values()) | _tied(modules.values(), linears) | _named(linears)
    return known or _as_wide_as_the_vocabulary(modules, linears) or _classifier(linears)


def _given(modules: dict[str, nn.Module], head: str | Iterable[str]) -> set[int]:
    names = list(head) if isinstance(head, Iterable) and not isinstance(head, str) else [head]
    for name in names:
        if not (isinstance(name, str) and isinstance(getattr(modules.get(name), "weight", None), Tensor)):
            raise ValueError(f"torchdion.param_groups: head must name a module with a weight, got {shown(name)}")
    return {id(modules[name].weight) for name in names}


def _declared(modules: Iterable[nn.Module]) -> set[int]:
    """What transformers' models, whole or inside of another, say of themselves."""
    weights = set()
    for module in modules:
        get_output_embeddings = getattr(module, "get_output_embeddings", None)
        if not callable(get_output_embeddings):
            continue
        with suppress(NotImplementedError, AttributeError):  # models that have none
            weight = getattr(get_output_embeddings(), "weight", None)
            if isinstance(weight, Tensor):
                weights.add(id(weight))
    return weights


def _tied(modules: Iterable[nn.Module], linears: Linears) -> set[int]:
    embeddings = {id(module.weight) for module in modules if isinstance(module, nn.Embedding)}
    return {id(linear.weight) for linear in linears.values()} & embeddings


def _named(linears: Linears) -> set[int]:
    found = set()
    for name, linear in linears.items():
        path = _path(name)
        if path and (path[-1] in _HEADS or path == [_TOP_LEVEL_HEAD]):
            found.add(id(linear.weight))
    return found


def _path(name: str) -> list[str]:
    """A module's name, from the top of the model that wrappers hold."""
    path = [part for part in name.split(".") if part not in _INSERTED]
    while len(path) > 1 and path[0] in _WRAPPED:
        del path[0]
    return path


def _as_wide_as_the_vocabulary(modules: dict[str, nn.Module], linears: Linears) -> set[int]:
    sizes = [
        module.num_embeddings
        for name, module in modules.items()
        if isinstance(module, nn.Embedding)
        and not _NO_VOCABULARY.search(name.rpartition(".")[2].lower())
        and "Position" not in type(module).__name__
    ]
    vocabulary = max(sizes, default=0)
    names = [name for name, linear in linears.items() if linear.out_features == vocabulary]
    if not names:
        return set()
    if len(names) > 1:
        warn(
            f"torchdion.param_groups: {len(names)} Linears have the {vocabulary} outputs of the vocabulary, from "
            f"{names[0]!r} to {names[-1]!r}, of which the last is taken for the head; head= names it"
        )
    return {id(linears[names[-1]].weight)}


def _classifier(linears: Linears) -> set[int]:
    """The last of all Linears, where the model calls it a classifier, or what it lies in."""
    if not linears:
        return set()
    name, linear = list(linears.items())[-1]
    return {id(linear.weight)} if _path(name)[0] in _CLASSIFIERS else set()
