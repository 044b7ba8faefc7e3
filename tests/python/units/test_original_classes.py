"""Models that scripting, tracing or exporting has left without types are routed as they were before."""

import copy
import io
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

import torchdion


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 8))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight)


class Model(nn.Module):
    """No name here says what a layer is, but for the head's."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Embedding(32, 8)
        self.b = nn.Linear(8, 8, bias=False)
        self.c = nn.LayerNorm((4, 8))
        self.d = nn.Conv1d(4, 6, 3, padding=1)
        self.e = nn.ConvTranspose1d(6, 4, 3, padding=1)
        self.lm_head = nn.Linear(8, 32, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.c(torch.tanh(self.b(self.a(tokens))))
        return self.lm_head(self.e(self.d(hidden)))


TOKENS = torch.zeros(2, 4, dtype=torch.long)


def saved_and_loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(model), file)
    file.seek(0)
    return torch.jit.load(file)


def exported(model: nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(model, (TOKENS,))


def forgetful(model: nn.Module) -> nn.Module:
    """Exported, without what nodes remember of modules: what the graph does is left."""
    whole = exported(model).module()
    for node in whole.graph.nodes:
        node.meta.clear()
    return whole


def with_fake_quantization(model: nn.Module) -> nn.Module:
    """As quantization-aware training has it: a module between each weight and its use."""
    whole = forgetful(model)
    whole.add_submodule("fake", nn.Identity())
    for node in list(whole.graph.nodes):
        if node.op == "get_attr" and str(node.target).endswith("weight"):
            with whole.graph.inserting_after(node):
                between = whole.graph.call_module("fake", (node,))
            node.replace_all_uses_with(between, delete_user_cb=lambda user, between=between: user is not between)
    whole.recompile()
    return whole


WITHOUT_TYPES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "scripted": torch.jit.script,
    "traced": lambda model: torch.jit.trace(model, (TOKENS,)),
    "saved": saved_and_loaded,
    "exported": lambda model: exported(model).module(),
    "copied": lambda model: copy.deepcopy(exported(model).module()),
    "decomposed": lambda model: exported(model).run_decompositions().module(),
    "unflattened": lambda model: torch.export.unflatten(exported(model)),
    "forgetful": forgetful,
    "quantized": with_fake_quantization,
    "in another": lambda model: nn.ModuleDict({"part": exported(model).module()}),
}


def routes(model: nn.Module) -> dict[str, dict]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="torchdion")
        groups = torchdion.param_groups(model)
    return {
        name.removeprefix("part."): {key: value for key, value in group.items() if key != "params"}
        for group in groups
        for name, _ in group["params"]
    }


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*torch.jit:FutureWarning")
@pytest.mark.parametrize("how", WITHOUT_TYPES)
def test_a_model_without_types_is_routed_as_it_was_with_them(how):
    model = Model()
    expected = routes(model)
    assert [expected[f"{name}.weight"]["kind"] for name in "abcde"] == [
        *("embedding", "matrix", "vector", "matrix", "transposed")
    ]
    assert routes(WITHOUT_TYPES[how](model)) == expected


@pytest.mark.parametrize("how", [fx.symbolic_trace, WITHOUT_TYPES["exported"], forgetful])
def test_what_a_graph_does_with_a_weight_says_more_than_the_class_of_its_module(how):
    model = nn.Sequential(Table(), nn.Linear(8, 8, bias=False))
    assert {name: route["kind"] for name, route in routes(how(model)).items()} == {
        "0.weight": "embedding",
        "1.weight": "matrix",
    }


def test_a_weight_that_a_graph_multiplies_from_the_right_has_its_inputs_first():
    class Right(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 6))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs @ self.weight

    whole = torch.export.export(nn.Sequential(Right()), (torch.ones(3, 8),)).module()
    assert routes(whole)["0.weight"]["fan_in_first"] is True


class Named(nn.Linear):
    """One's own attributes by the name that torch.export's modules have."""

    def __init__(self) -> None:
        super().__init__(8, 8, bias=False)
        self.type_name = nn.Embedding(5, 4)


class Asked(nn.Linear):
    def type_name(self, language: str) -> str:
        return f"in {language}"


def test_a_type_name_of_ones_own_is_not_called():
    model = nn.ModuleDict({"named": Named(), "asked": Asked(8, 8, bias=False)})
    assert {name: route["kind"] for name, route in routes(model).items()} == {
        "named.weight": "matrix",
        "named.type_name.weight": "embedding",
        "asked.weight": "matrix",
    }
