"""State dicts: deterministic, of plain types, and loaded wherever AdamW's are."""

import copy
import io
import pickle

import numpy
import pytest
import torch
from regression import CONFIGURATIONS, assert_same_state_dict, closure, options, parameters, trained
from torch import Tensor, nn
from torch.nn import Parameter

import torchdion
from torchdion.options import DEFAULTS
from torchdion.table import OPTIONS

OWN_DEFAULTS = {
    name: default
    for name, default in DEFAULTS.items()
    if name not in OPTIONS or {"dion", "lion"} & {*OPTIONS[name]["algorithms"]}
}
"""Of Dion and of Lion, which updates what are no matrices."""

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def without_names(state_dict: dict) -> dict:
    groups = [{k: v for k, v in group.items() if k != "param_names"} for group in state_dict["param_groups"]]
    return {**state_dict, "param_groups": groups}


@pytest.mark.parametrize("names", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_equal_optimizers_have_equal_state_dicts_after_loading_and_after_each_step(name, names):
    params, optimizer = trained(4, named=names[0], **options(name))
    twins, another = trained(0, [Parameter(X.detach().clone()) for X in params], named=names[1], **options(name))
    another.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(4):
        assert_same_state_dict(without_names(another.state_dict()), without_names(optimizer.state_dict()))
        for each, its_params in ((optimizer, params), (another, twins)):
            each.step(closure(each, its_params))
        assert all(map(torch.equal, params, twins))
    named = another.state_dict()["param_groups"][0].get("param_names")
    assert named == (["weight", "bias"] if any(names) else None)
    for each in (optimizer, another):  # repeated parameters are written as the same ones
        each.param_groups.extend(each.param_groups)
    last = [without_names(each.state_dict())["param_groups"][-1] for each in (optimizer, another)]
    assert last[0] == last[1]
    assert last[0]["params"] == [0, 1]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_file_loads_equal_with_weights_only(name, named):
    _, optimizer = trained(3, named=named, **options(name))
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    for weights_only in (True, False):
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=weights_only)
        assert_same_state_dict(loaded, optimizer.state_dict())


def types_in(value: object) -> set[type]:
    if isinstance(value, dict):
        return {type(value)}.union(*map(types_in, value), *map(types_in, value.values()))
    if isinstance(value, (list, tuple)):
        return {type(value)}.union(*map(types_in, value))
    return {type(value)}


@pytest.mark.parametrize("given", [torch.bfloat16, "bfloat16"])
@pytest.mark.parametrize("where", ["config", "group", "group config"])
def test_a_state_dict_holds_only_what_every_unpickler_knows(where, given):
    """No torch.dtype: LibTorch's unpickler has no such global."""
    config = torchdion.DionMixedPrecisionConfig(given, given, given)
    dtypes = {"momentum_dtype": given, "Q_dtype": given, "variance_dtype": given}
    group = {"config": {}, "group": dtypes, "group config": {"mixed_precision_config": config}}[where]
    X, b = Parameter(torch.zeros(6, 4)), Parameter(torch.zeros(3))
    optimizer = torchdion.Dion(
        [{"params": [("X", X), ("b", b)], "scalar_algorithm": "adamw", **group}],
        mixed_precision_config=config if where == "config" else None,
        lr=torch.tensor(0.1),
    )
    X.grad, b.grad = torch.ones(6, 4), torch.ones(3)
    optimizer.step()
    assert [optimizer.state[X][key].dtype for key in ("momentum", "Q")] == [torch.bfloat16] * 2
    assert optimizer.state[b]["variance"].dtype == torch.bfloat16
    saved = optimizer.state_dict()
    assert types_in(saved) <= {dict, list, tuple, Tensor, int, float, str, bool, type(None)}
    assert [saved["param_groups"][0][key] for key in dtypes] == ["bfloat16"] * 3


def test_a_checkpoint_that_holds_dtypes_loads_and_holds_names_from_then_on():
    [weight, _], optimizer = trained(1)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["momentum_dtype"] = torch.float64
    optimizer.load_state_dict(saved)
    assert optimizer.state[weight]["momentum"].dtype == torch.float64
    assert optimizer.param_groups[0]["momentum_dtype"] == "float64"


@pytest.mark.parametrize("option", OWN_DEFAULTS)
def test_what_was_saved_before_an_option_existed_gets_its_default(option):
    """A state dict, and a pickle of the optimizer itself."""
    params, optimizer = trained(2)
    old = copy.deepcopy(optimizer.state_dict())
    del old["param_groups"][0][option]
    twins, another = trained(0, [Parameter(X.detach().clone()) for X in params])
    another.load_state_dict(old)
    state = copy.deepcopy(optimizer).__getstate__()
    del state["defaults"][option], state["param_groups"][0][option], state["_memory"]
    unpickled = torchdion.Dion.__new__(torchdion.Dion)
    unpickled.__setstate__(state)
    copies = unpickled.param_groups[0]["params"]
    for each, its_params in ((optimizer, params), (another, twins), (unpickled, copies)):
        assert each.param_groups[0][option] == optimizer.param_groups[0][option]
        each.step(closure(each, its_params))
    assert all(map(torch.equal, params, twins))
    assert all(map(torch.equal, params, copies))
    assert unpickled.stats()["steps"] == 1


@pytest.mark.parametrize("given", [0.25, "0.25"])
def test_an_lr_scale_that_an_older_version_saved_is_the_multiplier(given):
    """Of a state dict, and of a pickle of the optimizer itself."""
    _, optimizer = trained(2)
    old = copy.deepcopy(optimizer.state_dict())
    old["param_groups"][0]["lr_scale"] = given
    del old["param_groups"][0]["lr_multiplier"]
    another = torchdion.Dion(parameters())
    if given == "0.25":
        with pytest.raises(ValueError, match=r"^torchdion.Dion: lr_multiplier must be a finite number ≥ 0, got '0.25'"):
            another.load_state_dict(old)
        return
    another.load_state_dict(old)
    state = copy.deepcopy(optimizer).__getstate__()
    state["defaults"]["lr_scale"] = state["defaults"].pop("lr_multiplier")
    state["param_groups"][0]["lr_scale"] = state["param_groups"][0].pop("lr_multiplier") * given
    unpickled = torchdion.Dion.__new__(torchdion.Dion)
    unpickled.__setstate__(state)
    for each in (another, unpickled):
        assert each.param_groups[0]["lr_multiplier"] == 0.25
        assert "lr_scale" not in each.param_groups[0]
        assert "lr_scale" not in each.defaults
        assert each.defaults["lr_multiplier"] == 1


@pytest.mark.filterwarnings("error")
def test_the_lr_scale_of_a_schedule_is_kept_and_changes_nothing():
    """Schedules of timm and of MAE's recipes multiply lr by it themselves."""
    params, optimizer = trained(0)
    twins, scaled = trained(0, [Parameter(X.detach().clone()) for X in params])
    scaled.param_groups.clear()
    scaled.add_param_group({"params": twins, "lr_scale": 0.25})
    for each, its_params in ((optimizer, params), (scaled, twins)):
        each.step(closure(each, its_params))
    assert all(map(torch.equal, params, twins))
    foreign = {"params": [0, 1], "lr_scale": 0.25}
    for group in (scaled.state_dict()["param_groups"][0], foreign):
        another = torchdion.Dion(parameters())
        another.load_state_dict({"state": scaled.state_dict()["state"], "param_groups": [group]})
        assert (another.param_groups[0]["lr_scale"], another.param_groups[0]["lr_multiplier"]) == (0.25, 1)


def test_numbers_of_numpy_are_saved_as_plain_ones():
    params = parameters()
    group = {"params": params, "rank_multiple_of": numpy.int64(2), "betas": (numpy.float32(0.5), 0.9)}
    optimizer = torchdion.Dion([group], lr=numpy.float32(0.25), mu=numpy.float64(0.9), maximize=numpy.bool_(False))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: numpy.cos(step))
    optimizer.step(closure(optimizer, params))
    schedule.step()
    saved = optimizer.state_dict()
    assert types_in(saved) <= {dict, list, tuple, Tensor, int, float, str, bool, type(None)}
    assert (saved["param_groups"][0]["initial_lr"], saved["param_groups"][0]["mu"]) == (0.25, 0.9)
    saved["param_groups"][0] |= {"lr": numpy.float64(0.5), "maximize": numpy.bool_(False)}
    optimizer.load_state_dict(saved)
    assert type(optimizer.param_groups[0]["lr"]) is float


def test_the_defaults_are_those_of_the_signature():
    betas = {"betas": (0.95, 0.98)}
    optimizer = torchdion.Dion(parameters())
    assert optimizer.defaults == OWN_DEFAULTS
    assert {k: v for k, v in optimizer.param_groups[0].items() if k != "params"} == OWN_DEFAULTS | betas


@pytest.mark.parametrize("kind", [int, float])
def test_a_step_that_is_a_plain_number_loads(kind):
    params, optimizer = trained(3, scalar_algorithm="adamw")
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        state["step"] = kind(state["step"].item())
    twins, another = trained(0, [Parameter(X.detach().clone()) for X in params], scalar_algorithm="adamw")
    another.load_state_dict(saved)
    for each, its_params in ((optimizer, params), (another, twins)):
        each.step(closure(each, its_params))
    assert all(map(torch.equal, params, twins))
    assert another.state[twins[0]]["step"].dtype == torch.float32


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("of", DTYPES)
def test_a_state_follows_the_dtype_of_the_parameters_that_it_is_loaded_into(of, to):
    params, optimizer = trained(3, [Parameter(X.detach().to(of)) for X in parameters()])
    saved = copy.deepcopy(optimizer.state_dict())
    twins, another = trained(0, [Parameter(X.detach().to(to)) for X in params])
    another.load_state_dict(saved)
    assert_same_state_dict(saved, optimizer.state_dict())
    for X, twin in zip(params, twins, strict=True):
        for key, value in optimizer.state[X].items():
            expected = value if key == "step" else value.to(to)
            assert another.state[twin][key].dtype == expected.dtype
            assert torch.equal(another.state[twin][key], expected)
    another.step(closure(another, twins))
    assert all(twin.isfinite().all() and twin.dtype == to for twin in twins)


def test_parameters_in_another_order_are_matched_by_name_by_a_hook():
    """torch goes by place and leaves names to a hook; its documentation shows one."""
    params, optimizer = trained(3, named=True)
    weight, bias = [Parameter(X.detach().clone()) for X in params]
    another = torchdion.Dion([("bias", bias), ("weight", weight)])

    def by_name(self, state_dict):
        [group], [saved] = self.param_groups, state_dict["param_groups"]
        places = dict(zip(saved["param_names"], saved["params"], strict=True))
        ordered = {**saved, "params": [places[name] for name in group["param_names"]]}
        return {**state_dict, "param_groups": [{**ordered, "param_names": group["param_names"]}]}

    another.register_load_state_dict_pre_hook(by_name)
    another.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, its_params in ((optimizer, params), (another, [weight, bias])):
        each.step(closure(each, its_params))
    assert all(map(torch.equal, params, (weight, bias)))
    assert another.param_groups[0]["param_names"] == ["bias", "weight"]


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_a_copy_has_every_attribute_of_the_original(copier):
    """But for what torch itself leaves out: a flag for a warning about CUDA graphs."""
    _, optimizer = trained(3, nonfinite="zero")
    optimizer._step_supports_amp_scaling = False
    twin = copier(optimizer)
    assert twin._step_supports_amp_scaling is False
    adamw = torch.optim.AdamW(parameters())
    assert vars(optimizer).keys() - vars(twin).keys() == vars(adamw).keys() - vars(copier(adamw)).keys()
    assert twin.stats() == optimizer.stats()
    assert twin.defaults == optimizer.defaults
    assert_same_state_dict(twin.state_dict(), optimizer.state_dict())
    assert twin.param_groups[0]["params"][0] is not optimizer.param_groups[0]["params"][0]


def test_a_model_and_its_optimizer_copied_together_stay_together():
    model = nn.Linear(5, 10)
    pair = copy.deepcopy((model, trained(1, [model.weight, model.bias])[1]))
    before = pair[0].weight.detach().clone()
    pair[1].step(closure(pair[1], [pair[0].weight, pair[0].bias]))
    assert not torch.equal(pair[0].weight, before)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_printed_form_names_every_option_of_every_group(name):
    params = parameters()
    optimizer = torchdion.Dion([{"params": params[:1]}, {"params": params[1:], "lr": 0.5}], **options(name))
    lines = repr(optimizer).splitlines()
    assert lines[0] == "Dion ("
    assert [line for line in lines if line.startswith("Parameter Group")] == ["Parameter Group 0", "Parameter Group 1"]
    for key in OWN_DEFAULTS:
        assert sum(line.startswith(f"    {key}: ") for line in lines) == 2
    assert "    lr: 0.5" in lines


def test_a_model_that_was_made_on_the_meta_device_is_taken_once_it_has_memory():
    with torch.device("meta"):
        model = nn.Linear(5, 10)
    with pytest.raises(NotImplementedError, match=r"^torchdion.Dion: parameter 0 .* is on meta"):
        torchdion.Dion(model.parameters())
    model.to_empty(device="cpu")
    with torch.no_grad():
        for param, values in zip(model.parameters(), parameters(), strict=True):
            param.copy_(values)
    expected, _ = trained(2)
    actual, _ = trained(2, list(model.parameters()))
    assert all(map(torch.equal, actual, expected))
