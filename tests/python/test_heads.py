"""Which weights are output layers: what models say of themselves, names, and only then sizes."""

import warnings

import pytest
import torch
from architectures import ARCHITECTURES
from torch import nn

import torchdion

HEADS = {
    "bert": {"bert.embeddings.word_embeddings.weight"},  # tied
    "bert classifier": {"classifier.weight"},
    "bert body": set(),
    "roberta classifier": {"classifier.out_proj.weight"},
    "gpt2": {"transformer.wte.weight"},
    "gpt2 classifier": {"score.weight"},
    "marian": {"model.shared.weight"},
    "llama": {"lm_head.weight"},
    "mixtral": {"lm_head.weight"},
    "t5": {"shared.weight"},
    "vit": {"classifier.weight"},
    "swin": {"classifier.weight"},
    "clip": set(),
    "mamba": {"backbone.embeddings.weight"},
    "rwkv": {"head.weight"},
    "wav2vec2": {"lm_head.weight"},
}


def heads_of(model: nn.Module, **options: object) -> set[str]:
    groups = torchdion.param_groups(model, **options)
    return {name for group in groups if group["kind"] == "head" for name, _ in group["params"]}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_the_head_of_an_architecture_is_its_output_layer_whatever_else_is_as_wide(name, wrapped):
    """BERT and Marian have as many positions as features here, GPT-2's classifier too."""
    with torch.device("meta"):
        model = ARCHITECTURES[name]()
    prefix = "module." if wrapped else ""
    assert heads_of(nn.ModuleDict({"module": model}) if wrapped else model) == {prefix + head for head in HEADS[name]}


class Stage(nn.Module):
    """torchtitan's names; a pipeline stage but for the first has no embedding, but for the last no output."""

    def __init__(self, *, first: bool, last: bool) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(16, 8) if first else None
        self.layers = nn.ModuleDict({"0": nn.ModuleDict({"output": nn.Linear(8, 16), "w2": nn.Linear(16, 8)})})
        self.output = nn.Linear(8, 16, bias=False) if last else None


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_the_output_of_a_stage_is_a_head_and_the_output_of_a_layer_is_none(first, compiled):
    model = Stage(first=first, last=True)
    whole = torch.compile(model) if compiled else model
    assert heads_of(whole) == {"_orig_mod.output.weight" if compiled else "output.weight"}


def test_embeddings_of_positions_and_types_are_no_vocabulary():
    model = nn.ModuleDict(
        {
            "wte": nn.Embedding(30, 64),
            "wpe": nn.Embedding(64, 64),
            "token_type_embeddings": nn.Embedding(2, 64),
            "fc": nn.Linear(64, 64),
            "pair": nn.Linear(64, 2),
        }
    )
    assert heads_of(model) == set()
    model["out"] = nn.Linear(64, 30)
    assert heads_of(model) == {"out.weight"}


class PositionTable(nn.Embedding):
    pass


def test_the_vocabulary_is_the_largest_embedding_of_tokens():
    model = nn.ModuleDict(
        {
            "characters": nn.Embedding(16, 8),
            "words": nn.Embedding(64, 8),
            "places": PositionTable(128, 8),
            "narrow": nn.Linear(8, 16),
            "wide": nn.Linear(8, 64),
            "widest": nn.Linear(8, 128),
        }
    )
    assert heads_of(model) == {"wide.weight"}


@pytest.mark.parametrize("head", ["absent", 5, [5], [["0"]], ["0", "1"]], ids=str)
def test_a_head_that_names_no_module_with_a_weight_is_refused(head):
    with pytest.raises(ValueError, match=r"^torchdion.param_groups: head must name a module with a weight, got "):
        torchdion.param_groups(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), head=head)


def test_the_last_of_several_layers_as_wide_as_the_vocabulary_is_the_head_and_a_warning_says_so():
    model = nn.Sequential(nn.Embedding(16, 16), nn.Linear(16, 16), nn.Linear(16, 16))
    sentence = (
        r"^torchdion.param_groups: 2 Linears have the 16 outputs of the vocabulary, from '1' to '2', of which the last "
        r"is taken for the head; head= names it$"
    )
    with pytest.warns(UserWarning, match=sentence):
        assert heads_of(model) == {"2.weight"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert heads_of(model, head="1") == {"1.weight"}


@pytest.mark.parametrize("child", ["classifier", "score", "fc", "head", "classification_head"])
def test_a_classifier_is_the_last_linear_of_a_model_that_calls_it_so(child):
    body = nn.Linear(8, 8)
    assert heads_of(nn.ModuleDict({"body": body, child: nn.Linear(8, 3)})) == {f"{child}.weight"}
    several = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    assert heads_of(nn.ModuleDict({"body": body, child: several})) == {f"{child}.2.weight"}
    if child != "head":  # which is one wherever it stands
        assert heads_of(nn.ModuleDict({child: nn.Linear(8, 3), "body": body})) == set()


def test_a_linear_tied_to_an_embedding_is_the_head_whatever_its_name():
    model = nn.ModuleDict({"tokens": nn.Embedding(30, 8), "up": nn.Linear(8, 30), "decode": nn.Linear(8, 30)})
    model["decode"].weight = model["tokens"].weight
    assert heads_of(model) == {"tokens.weight"}
