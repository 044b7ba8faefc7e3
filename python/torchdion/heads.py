"""Finds the output layers of a model, whose weights are no matrices to Dion."""

import itertools
import re
from collections.abc import Iterable
from contextlib import suppress

from torch import nn

from torchdion.kinds import is_gain, owned_parameters
from torchdion.warning import warn
from torchdion.words import shown

# The tables of names stand in csrc/optim/heads.cpp too.
_HEADS = ("lm_head", "head", "head_dist", "unembed", "unembedding", "embed_out", "output_projection")
_TOP_LEVEL_HEAD = "output"  # torchtitan's; deeper in a model it is the name of any layer's output
# Children of a model that are its classifiers, wherever they stand, and such as are none but at the end.
_CLASSIFIERS = (
    *("classifier", "classification_head", "cls_classifier", "distillation_classifier", "classifier_distill"),
    *("logits_proj", "qa_outputs", "qa_classifier", "answer_head"),
)
_LAST_CLASSIFIERS = ("head", "heads", "head_dist", "score", "fc")
# What wrappers add to the names of modules: anywhere, and in front of all.
_INSERTED = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_WRAPPED = ("model", "base_model", "net")
# Words in the names of embeddings that count something else than tokens.
_NO_VOCABULARY = (
    *("pos", "posemb", "position", "positions", "positional", "wpe", "relative", "rel", "row", "rows", "column"),
    *("columns", "point", "points", "time", "times", "timestep", "timesteps", "type", "types", "seg", "segment"),
    *("segments", "level", "levels", "code", "codes", "codebook", "codebooks", "quantizer", "speaker", "speakers"),
    *("lang", "langs", "mask", "masks", "query", "queries"),
)
_WORD = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+"
_OF_WEIGHT = re.compile(r"weight(_orig|_v)?$|parametrizations\.weight\.")  # a weight, or what it is computed from

Linears = dict[str, nn.Linear]


def head_weights(model: nn.Module, head: str | Iterable[str] | None) -> set[int]:
    """The ids of the parameters that output layers' weights are, or are computed from.

    Raises:
        ValueError: ``head`` names no module with a weight of two or more dimensions.
    """
    modules = dict(model.named_modules())
    if head is not None:
        return _given(modules, head)
    linears = {name: module for name, module in modules.items() if isinstance(module, nn.Linear)}
    known = [*_declared(modules.values()), *_tied(modules.values(), linears), *_named(linears)]
    return _weights(known or _as_wide_as_the_vocabulary(modules, linears) or _classifiers(linears))


def _weights(layers: Iterable[nn.Module]) -> set[int]:
    return set().union(*map(_weights_of, layers))


def _weights_of(layer: nn.Module) -> set[int]:
    """Of weight_norm its directions, of a LoRA parametrization its factors; of a wrapper the weight that it shows."""
    parts = [owned for owned in owned_parameters(layer) if _OF_WEIGHT.match(owned.name)]
    found = {id(owned.param) for owned in parts if owned.param.dim() >= 2 and not is_gain(owned.key)}
    if parts:
        return found
    shown_weight = getattr(layer, "weight", None)
    return {id(shown_weight)} if isinstance(shown_weight, nn.Parameter) and shown_weight.dim() >= 2 else set()


def _given(modules: dict[str, nn.Module], head: str | Iterable[str]) -> set[int]:
    names = list(head) if isinstance(head, Iterable) and not isinstance(head, str) else [head]
    weights = set()
    for name in names:
        found = _weights_of(modules[name]) if isinstance(name, str) and name in modules else set()
        if not found:
            raise ValueError(
                "torchdion.param_groups: head must name a module with a weight of two or more dimensions, got "
                f"{shown(name)}"
            )
        weights |= found
    return weights


def _declared(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """What transformers' models, whole or inside of another, say of themselves: a layer, or what holds several."""
    layers: list[nn.Module] = []
    for module in modules:
        get_output_embeddings = getattr(module, "get_output_embeddings", None)
        if not callable(get_output_embeddings):
            continue
        with suppress(NotImplementedError, AttributeError):  # models that have none
            declared = get_output_embeddings()
            if isinstance(declared, nn.Module):
                is_layer = bool(_weights_of(declared))
                layers += [declared] if is_layer else [m for m in declared.modules() if isinstance(m, nn.Linear)]
    return layers


def _tied(modules: Iterable[nn.Module], linears: Linears) -> list[nn.Linear]:
    embeddings = _weights(module for module in modules if isinstance(module, nn.Embedding))
    return [linear for linear in linears.values() if _weights_of(linear) & embeddings]


def _named(linears: Linears) -> list[nn.Linear]:
    found = []
    for name, linear in linears.items():
        path = _path(name)
        if path and (path[-1] in _HEADS or path == [_TOP_LEVEL_HEAD]):
            found.append(linear)
    return found


def _path(name: str) -> list[str]:
    """A module's name, from the top of the model that wrappers hold."""
    path = [part for part in name.split(".") if part not in _INSERTED]
    while len(path) > 1 and path[0] in _WRAPPED:
        del path[0]
    return path


def _as_wide_as_the_vocabulary(modules: dict[str, nn.Module], linears: Linears) -> list[nn.Linear]:
    sizes = [
        module.num_embeddings
        for name, module in modules.items()
        if isinstance(module, nn.Embedding) and not _counts_no_tokens(name, module)
    ]
    vocabulary = max(sizes, default=0)
    names = [name for name, linear in linears.items() if linear.out_features == vocabulary]
    if len(names) > 1:
        warn(
            f"torchdion.param_groups: {len(names)} Linears have the {vocabulary} outputs of the vocabulary, from "
            f"{names[0]!r} to {names[-1]!r}, of which the last is taken for the head; head= names it"
        )
    return [linears[name] for name in names[-1:]]


def _counts_no_tokens(name: str, embedding: nn.Embedding) -> bool:
    words = re.findall(_WORD, name.rpartition(".")[2])
    return any(word.lower() in _NO_VOCABULARY for word in words) or "Position" in type(embedding).__name__


def _classifiers(linears: Linears) -> list[nn.Linear]:
    """The last Linear of each of the model's children that are called classifiers."""
    last_of = {_path(name)[0]: linear for name, linear in linears.items() if _path(name)}
    found = [linear for child, linear in last_of.items() if child in _CLASSIFIERS]
    if found:
        return found
    at_the_end = itertools.takewhile(lambda item: item[0] in _LAST_CLASSIFIERS, reversed(last_of.items()))
    return [linear for _, linear in at_the_end]
