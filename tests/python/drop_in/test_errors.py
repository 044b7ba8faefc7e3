"""What this optimizer cannot do is refused in a sentence that says so, before anything changes."""

import copy
import re

import pytest
import torch
from regression import parameters, trained
from torch import nn
from torch.nn import Parameter

import torchdion
from torchdion.options import DEFAULTS
from torchdion.table import ALGORITHMS


@pytest.mark.parametrize("option", ["fused", "foreach", "differentiable", "amsgrad", "eps"])
def test_options_of_adamw_that_do_not_exist_here_are_refused_by_name(option):
    """The engine is always fused, and no graph goes through a step."""
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        torchdion.Dion(parameters(), **{option: True})


@pytest.mark.parametrize(
    ("option", "advice"),
    {
        "eps": "; did you mean 'epsilon'?",
        "momentum": "; did you mean 'mu'?",
        "oversample": "; did you mean 'rcqr_oversample'?",
        "rank_frction": "; did you mean 'rank_fraction'?",
        "replicate_meshes": "; did you mean 'replicate_mesh'?",
        "mixed_precision": "; did you mean 'mixed_precision_config'?",
        "momentum_dtype": "; did you mean 'mixed_precision_config'?",
        "batch_dim": "; did you mean 'batch_dims' of a parameter group?",
        "owners": ": it is one of 'muon' and 'normuon' and 'dion2' and 'dion3' and 'lion' and 'adamw'",
        "algorithm": ": only a parameter group takes it",
        "lr_multiplier": ": only a parameter group takes it",
        "differentiable": ": no graph goes through a step",
        "fused": ": every step is fused, there is nothing to choose",
        "foreach": ": every step is fused, there is nothing to choose",
        "amsgrad": "",
        "wd": "; did you mean 'weight_decay'?",
        "beta1": "; did you mean 'betas'?",
    }.items(),
)
def test_an_unknown_keyword_is_refused_with_the_option_that_may_be_meant(option, advice):
    sentence = f"torchdion.Dion: unexpected keyword argument {option!r}{advice}"
    with pytest.raises(TypeError, match=f"^{re.escape(sentence)}$"):
        torchdion.Dion(parameters(), **{option: 1})


def test_no_keyword_that_is_refused_is_its_own_advice():
    """Every option of a group is the constructor's too, or says where it belongs."""
    for name in DEFAULTS:
        try:
            torchdion.Dion(parameters(), **{name: None})
        except TypeError as refused:
            assert f"did you mean {name!r}" not in str(refused)
        except ValueError as refused:
            assert f"{name} must be " in str(refused)


def test_another_name_of_an_option_in_a_group_is_obeyed_and_one_without_meaning_warned_of():
    [group] = torchdion.Dion([{"params": parameters(), "momentum": 0.5, "oversample": 2.0}]).param_groups
    assert (group["mu"], group["rcqr_oversample"]) == (0.5, 2.0)
    sentence = (
        "torchdion.Dion: the key 'eps' (parameter group 0) is kept and ignored: it is 'epsilon' here, an option of "
        "adamw, which no parameter of the group has"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(sentence)}$"):
        torchdion.Dion([{"params": parameters(), "eps": 0.5}])


@pytest.mark.parametrize(
    ("given", "options", "expected", "words"),
    [
        (lambda X, Y: X, {}, TypeError, "should be an iterable of Tensors or dicts"),
        (lambda X, Y: [X, X], {}, UserWarning, "a parameter group with duplicate parameters"),
        (lambda X, Y: [{"params": X}, {"params": X}], {}, ValueError, "appear in more than one parameter group"),
        (lambda X, Y: None, {"lr": torch.tensor([0.001, 0.001])}, ValueError, "Tensor lr must be 1-element"),
        (lambda X, Y: [("weight", X), Y], {}, ValueError, "all optimizer params should be with/without names"),
    ],
)
def test_what_torch_asks_all_optimizers_to_refuse_or_to_warn_of(given, options, expected, words):
    """What torch's own test_errors gives to each."""
    X, Y = Parameter(torch.randn(1, 1)), Parameter(torch.randn(1, 1))
    expect = pytest.warns if issubclass(expected, Warning) else pytest.raises
    with expect(expected, match=words):
        torchdion.Dion(given(X, Y), **options)


@pytest.mark.filterwarnings("ignore:torchdion.Dion. the key 'amsgrad'")
def test_keys_of_other_optimizers_in_a_group_are_kept_and_change_nothing():
    expected, _ = trained(0)
    params = parameters()
    reference = torchdion.Dion(expected)
    optimizer = torchdion.Dion([{"params": params, "fused": True, "foreach": False, "amsgrad": True, "nesterov": True}])
    for each in (expected, params):
        for param in each:
            param.grad = torch.ones_like(param)
    reference.step()
    optimizer.step()
    assert all(map(torch.equal, params, expected))
    assert optimizer.param_groups[0]["fused"] is True


@pytest.mark.parametrize("betas", [(torch.tensor(0.9), 0.99), (0.9, torch.tensor(0.99)), (1.0, 0.0)])
def test_betas_are_two_plain_numbers(betas):
    with pytest.raises(ValueError, match=r"^torchdion.Dion: betas must be None or two numbers in \[0, 1\), got "):
        torchdion.Dion(parameters(), betas=betas)


def test_names_are_given_to_all_parameters_or_to_none():
    weight, bias = parameters()
    with pytest.raises(ValueError, match=r"should be with/without names\. Some param names are missing"):
        torchdion.Dion([("weight", weight), bias])
    with pytest.raises(ValueError, match="cannot add param group with names to the optimizer"):
        torchdion.Dion([{"params": [weight]}, {"params": [("bias", bias)]}])


def test_a_complex_parameter_is_refused_and_trains_as_two_real_ones():
    Z = torch.randn(4, 3, dtype=torch.complex64)
    with pytest.raises(ValueError, match=r"must be real floating-point, got torch\.complex64"):
        torchdion.Dion([Parameter(Z)])
    real = Parameter(torch.view_as_real(Z).clone())
    optimizer = torchdion.Dion([{"params": [real], "batch_dims": 0}])
    torch.view_as_complex(real).abs().square().sum().backward()
    optimizer.step()
    assert real.detach().norm() < Z.norm()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_the_sparse_gradient_of_an_embedding_is_refused_before_any_write(layer, algorithm):
    embedding, linear = layer(10, 4, sparse=True), nn.Linear(4, 3)
    params = [*linear.parameters(), *embedding.parameters()]
    optimizer = torchdion.Dion([{"params": params, "algorithm": algorithm}])
    linear(embedding(torch.tensor([[1, 2]]))).sum().backward()
    before = copy.deepcopy(params)
    with pytest.raises(
        RuntimeError, match=r"^torchdion.Dion: gradients must be dense, got torch.sparse_coo for a \(10, 4"
    ):
        optimizer.step()
    assert all(map(torch.equal, params, before))
    embedding.weight.grad = embedding.weight.grad.to_dense()
    optimizer.step()
    assert not torch.equal(embedding.weight, before[2])


def test_a_state_on_the_meta_device_is_refused_as_adamw_refuses_it():
    for cls, error, sentence in (
        (torch.optim.AdamW, NotImplementedError, "Cannot copy out of meta tensor"),
        (torchdion.Dion, ValueError, "^torchdion.Dion: the state momentum of parameter 0 .* must have memory"),
    ):
        params = parameters()
        optimizer = cls(params)
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
        saved = copy.deepcopy(optimizer.state_dict())
        for state in saved["state"].values():
            state.update({key: value.to("meta") for key, value in state.items() if key != "step"})
        with pytest.raises(error, match=sentence):
            optimizer.load_state_dict(saved)
