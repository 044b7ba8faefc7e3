"""Stages of pipelines: an embedding tied to the head of another stage, whose copies must stay equal."""

import re
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchdion

ALONE = (
    "torchdion.param_groups: {} is an output layer in a model without an embedding, as on the last stage of a "
    "pipeline; head must name it here and, if the two are tied, the embedding on its stage, so that their copies stay "
    "equal"
)
REMOVED = (
    "torchdion.param_groups: {} is an embedding in a model without its output layer, as on the first stage of a "
    "pipeline; head must name it if the two are tied, so that their copies stay equal, and be empty if not"
)


class Stage(nn.Module):
    def __init__(self, head: str = "lm_head", *, bias: bool = False, tokens: int = 64, width: int = 16) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(tokens, width)
        self.body = nn.Linear(width, width)
        self.register_module(head, nn.Linear(width, tokens, bias=bias))


def first(head: str = "lm_head") -> Stage:
    stage = Stage(head)
    setattr(stage, head, None)
    return stage


def last(head: str = "lm_head", **options: object) -> Stage:
    stage = Stage(head, **options)
    stage.embed_tokens = None
    return stage


def said_of(model: nn.Module, **options: object) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torchdion.param_groups(model, **options)
    return [str(warning.message) for warning in seen]


@pytest.mark.parametrize("optimizer", [torchdion.Dion, torchdion.Muon])
@pytest.mark.parametrize("scalar_algorithm", ["lion", "adamw"])
def test_copies_of_a_tied_embedding_stay_equal_where_both_stages_name_it_as_the_head(optimizer, scalar_algorithm):
    """A pipeline sums the gradients of both copies; the whole model takes the same steps."""
    torch.manual_seed(0)
    stages, whole = (first(), last()), Stage()
    whole.lm_head.weight = whole.embed_tokens.weight
    with torch.no_grad():
        stages[0].embed_tokens.weight.copy_(whole.embed_tokens.weight)
        stages[1].lm_head.weight.copy_(whole.embed_tokens.weight)
        for stage in stages:
            stage.body.load_state_dict(whole.body.state_dict())
    optimizers = [
        optimizer(torchdion.param_groups(model, head=head, scalar_algorithm=scalar_algorithm), lr=0.01)
        for model, head in ((stages[0], "embed_tokens"), (stages[1], "lm_head"), (whole, None))
    ]
    for step in range(6):
        tokens = torch.randint(64, (4, 8), generator=torch.Generator().manual_seed(step))
        for one in optimizers:
            one.zero_grad()
        hidden = stages[0].body(stages[0].embed_tokens(tokens))
        F.cross_entropy(stages[1].lm_head(stages[1].body(hidden)).flatten(0, 1), tokens.flatten()).backward()
        copies = stages[0].embed_tokens.weight, stages[1].lm_head.weight
        total = copies[0].grad + copies[1].grad
        copies[0].grad, copies[1].grad = total, total.clone()
        whole.embed_tokens.weight.grad = total.clone()
        for one in optimizers:
            one.step()
        assert torch.equal(*copies)
    assert torch.equal(copies[0], whole.embed_tokens.weight)


@pytest.mark.parametrize("head", ["lm_head", "unembed", "embed_out", "output", "output_layer"])
def test_an_output_layer_alone_is_spoken_of_until_it_is_named(head):
    assert said_of(last(head)) == [ALONE.format(repr(head))]
    assert said_of(last(head), head=head) == []


@pytest.mark.parametrize("head", ["lm_head", "output"])
def test_an_embedding_whose_output_layer_was_removed_is_spoken_of_until_it_is_named_or_none_is(head):
    assert said_of(first(head)) == [REMOVED.format("'embed_tokens'")]
    assert said_of(first(head), head="embed_tokens") == said_of(first(head), head=[]) == []


def encoder() -> nn.Module:
    return nn.ModuleDict({"embed_tokens": nn.Embedding(64, 16), "body": nn.Linear(16, 16)})


def frozen() -> nn.Module:
    stage = last()
    stage.lm_head.requires_grad_(False)
    return stage


QUIET: dict[str, Callable[[], nn.Module]] = {
    "whole": Stage,
    "with a bias": lambda: last(bias=True),
    "an encoder": encoder,
    "a middle stage": lambda: nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)),
    "a classifier": lambda: nn.ModuleDict({"body": nn.Linear(16, 16), "head": nn.Linear(16, 10, bias=False)}),
    "an encoder of sound": lambda: nn.ModuleDict({"body": nn.Linear(16, 16), "output": nn.Linear(16, 16, bias=False)}),
    "frozen": frozen,
}


@pytest.mark.parametrize("name", QUIET)
def test_models_that_are_no_stages_are_not_spoken_of(name):
    assert said_of(QUIET[name]()) == []


def test_positions_are_no_embedding_of_tokens():
    stage = last()
    stage.wpe = nn.Embedding(8, 16)
    assert re.match(re.escape(ALONE.format("'lm_head'")), said_of(stage)[0])


def test_no_head_at_all_may_be_said():
    groups = torchdion.param_groups(Stage(), head=[])
    assert {group["kind"] for group in groups} == {"matrix", "embedding", "vector"}
