"""Which weights are output layers: what models say of themselves, names, and only then sizes."""

import re
import warnings

import pytest
import torch
import torch.nn.utils.parametrizations as parametrizations
from architectures import ARCHITECTURES
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from transformers.pytorch_utils import Conv1D

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
    "xlm-roberta classifier": {"classifier.out_proj.weight"},  # which stands before the body
    "xlnet": {"logits_proj.weight"},
    "musicgen": {"lm_heads.0.weight", "lm_heads.1.weight"},
    "vit": {"classifier.weight"},
    "deit": {"cls_classifier.weight", "distillation_classifier.weight"},
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


EMBEDDINGS = ["encoder_embedding", "embedding_layer", "input_embeds_layer", "language_embedding", "decoderEmbedding"]


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_only_whole_words_say_that_an_embedding_is_of_something_else_than_tokens(name):
    model = nn.ModuleDict({name: nn.Embedding(60, 8), "body": nn.Linear(8, 8), "fc_out": nn.Linear(8, 60)})
    assert heads_of(model) == {"fc_out.weight"}


@pytest.mark.parametrize("name", ["absPosEmbed", "rel_2", "lang_embeddings", "code_embedding", "timestep1"])
def test_words_are_parted_by_case_and_digits(name):
    model = nn.ModuleDict({name: nn.Embedding(60, 8), "body": nn.Linear(8, 8), "fc_out": nn.Linear(8, 60)})
    assert heads_of(model) == set()


@pytest.mark.parametrize("head", ["absent", 5, [5], [["0"]], ["0", "1"], "2", "3"], ids=str)
def test_a_head_that_names_no_module_with_a_weight_is_refused(head):
    """And one of which the weight is a vector, or is computed from what lies elsewhere."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4), nn.Module())
    model[3].weight = torch.ones(4, 4)
    sentence = (
        r"^torchdion.param_groups: head must name a module with a weight of two or more dimensions, "
        rf"got {re.escape(repr(head[-1] if isinstance(head, list) else head))}$"
    )
    with pytest.raises(ValueError, match=sentence):
        torchdion.param_groups(model, head=head)


class LowRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(6, 2))
        self.down = nn.Parameter(torch.randn(2, 4))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def with_low_rank(layer: nn.Linear) -> nn.Linear:
    parametrize.register_parametrization(layer, "weight", LowRank())
    layer.parametrizations.weight.original.requires_grad_(False)
    return layer


COMPUTED = {
    "weight_norm": (parametrizations.weight_norm, {"parametrizations.weight.original1"}),
    "old weight_norm": (nn.utils.weight_norm, {"weight_v"}),
    "spectral_norm": (parametrizations.spectral_norm, {"parametrizations.weight.original"}),
    "old spectral_norm": (nn.utils.spectral_norm, {"weight_orig"}),
    "pruned": (lambda layer: prune.l1_unstructured(layer, "weight", 0.5), {"weight_orig"}),
    "low rank": (with_low_rank, {"parametrizations.weight.0.up", "parametrizations.weight.0.down"}),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize(("key", "head"), [("head", None), ("head", "head"), ("last", "last")])
def test_a_head_whose_weight_is_computed_is_what_it_is_computed_from(name, key, head):
    compute, parts = COMPUTED[name]
    model = nn.ModuleDict({"body": nn.Linear(4, 4), key: compute(nn.Linear(4, 6))})
    assert heads_of(model, head=head) == {f"{key}.{part}" for part in parts}


def test_a_wrapper_that_shows_the_weight_of_its_layer_names_a_head():
    """As PEFT's layers do."""

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base_layer = nn.Linear(4, 6)

        @property
        def weight(self) -> Tensor:
            return self.base_layer.weight

    assert heads_of(nn.Sequential(nn.Linear(4, 4), Wrapper()), head="1") == {"1.base_layer.weight"}


@pytest.mark.parametrize("compute", [nn.Identity(), parametrizations.weight_norm], ids=["plain", "weight_norm"])
def test_the_factor_of_a_head_follows_its_inputs_wherever_they_stand(compute):
    heads = nn.ModuleList([compute(Conv1D(7, 16)), nn.ConvTranspose1d(16, 7, 1), nn.Conv2d(4, 7, 2), nn.Linear(16, 7)])
    groups = torchdion.param_groups(heads, head=["0", "1", "2", "3"])
    assert [group["lr_multiplier"] for group in groups if group["kind"] == "head"] == [1 / 4]


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
    is_one_wherever_it_stands = child not in ("score", "fc")
    first = nn.ModuleDict({child: nn.Linear(8, 3), "body": body})
    assert heads_of(first) == ({f"{child}.weight"} if is_one_wherever_it_stands else set())


@pytest.mark.parametrize(
    "names",
    [("head", "head_dist"), ("cls_classifier", "distillation_classifier"), ("classifier", "classifier_distill")],
)
def test_a_model_may_have_several_classifiers(names):
    """timm's and transformers' DeiT, and LeViT."""
    heads = {name: nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3)) for name in names}
    model = nn.ModuleDict({"body": nn.Linear(8, 8), **heads})
    assert heads_of(model) == {f"{name}.1.weight" for name in names}
    assert heads_of(nn.ModuleDict({"module": nn.ModuleDict({"head": nn.Linear(8, 8), "head_dist": nn.Linear(8, 3)})}))


def test_what_lies_between_the_body_and_the_classifier_is_no_head():
    """ModernBERT's ``head`` is a layer before its classifier."""
    layer = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    model = nn.ModuleDict({"body": nn.Linear(8, 8), "head": layer, "classifier": nn.Linear(8, 3)})
    assert heads_of(model) == {"classifier.weight"}


def test_a_linear_alone_in_a_wrapper_is_no_classifier():
    assert heads_of(nn.ModuleDict({"module": nn.Linear(3, 3)})) == set()


def test_a_linear_tied_to_an_embedding_is_the_head_whatever_its_name():
    model = nn.ModuleDict({"tokens": nn.Embedding(30, 8), "up": nn.Linear(8, 30), "decode": nn.Linear(8, 30)})
    model["decode"].weight = model["tokens"].weight
    assert heads_of(model) == {"tokens.weight"}


class NormedLinear(nn.Module):
    """LDAM's, of normalized rows."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))


@pytest.mark.parametrize("shape", [(3, 8), (1, 8)])
def test_a_head_that_is_named_may_be_of_any_type_and_of_one_row(shape):
    model = nn.ModuleDict({"body": nn.Linear(8, 8), "fc": NormedLinear(*shape)})
    assert heads_of(model, head="fc") == {"fc.weight"}
