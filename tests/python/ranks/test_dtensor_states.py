"""States of DTensors: their pieces and placements, checkpoints and copies."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from fake_world import COLWISE, ROWWISE, fake_world, mesh_of, numbered, placed, wrapped
from ranks import run_ranks
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn import Parameter

import torchdion
from torchdion.dtensor import local_part

HALF = torchdion.DionMixedPrecisionConfig(momentum_dtype=torch.bfloat16, Q_dtype=torch.float64)
STRIDED, S0, S1, S2, S3 = (_StridedShard(0, split_factor=2), *map(Shard, range(4)))


def states_of(param: Parameter, **options: Any) -> dict[str, Any]:
    """As they are before the first step."""
    param.grad = torch.zeros_like(param)
    optimizer = torchdion.Dion([{"params": [param], **options}])
    optimizer._core.make_states(optimizer)
    return optimizer.state[param]


def start_of_Q(shape: tuple[int, ...], **options: Any) -> torch.Tensor:
    return states_of(Parameter(torch.zeros(shape)), **options)["Q"]


LEFT = {"orientation": "left"}
PLACEMENTS_OF_Q = [
    ((9, 7), {}, (S0, S1), (9, 7), (S0, S1)),
    ((9, 7), LEFT, (S0, S1), (7, 7), (S1, S0)),
    ((9, 7), {"fan_in_first": True}, (S0, S1), (7, 7), (S1, S0)),
    ((9, 7), {"fan_in_first": True, **LEFT}, (S0, S1), (9, 7), (S0, S1)),
    ((11, 7), {}, (STRIDED, S0), (11, 7), (STRIDED, S0)),
    ((8, 9), LEFT, (STRIDED, S0), (9, 8), (_StridedShard(1, split_factor=2), S1)),
    ((9, 7), {"rank_fraction": 0.4}, (S1, S1), (9, 3), (S1, S1)),
    ((3, 6, 5), {"batch_dims": 1}, (S0, S1), (3, 6, 5), (S0, S1)),
    ((3, 6, 5), {"batch_dims": 1, **LEFT}, (S2, S1), (3, 5, 5), (S1, S2)),
    ((6, 5), {"blocks": 3}, (S1, Replicate()), (3, 2, 2), (S2, Replicate())),
    ((6, 5), {"blocks": 3, **LEFT}, (S1, Replicate()), (3, 5, 2), (S1, Replicate())),
    ((7, 2, 3, 1), {"batch_dims": 0}, (Replicate(), S0), (7, 6), (Replicate(), S0)),
    ((2, 5, 6, 4), {"batch_dims": 2}, (S0, S3), (2, 5, 6, 4), (S0, S3)),
]


@pytest.mark.parametrize(("shape", "options", "placements", "shape_of_Q", "placements_of_Q"), PLACEMENTS_OF_Q, ids=str)
def test_states_are_DTensors_whose_pieces_make_up_those_of_one_process(
    shape, options, placements, shape_of_Q, placements_of_Q
):
    whole = start_of_Q(shape, **options)
    assert whole.shape == shape_of_Q
    for rank in range(4):
        with fake_world(rank, 4):
            param = placed(torch.zeros(shape), mesh_of(a=2, b=2), *placements)
            states = states_of(param, **options)
            momentum, Q = states["momentum"], states["Q"]
            assert (momentum.placements, Q.placements) == (placements, placements_of_Q)
            assert (momentum.shape, Q.shape) == (shape, shape_of_Q)
            assert momentum.device_mesh == Q.device_mesh == param.device_mesh
            assert momentum.to_local().shape == param.to_local().shape
            assert torch.equal(Q.to_local(), placed(whole, param.device_mesh, *placements_of_Q).detach().to_local())
            assert type(states["step"]) is torch.Tensor


@pytest.mark.parametrize("algorithm", ["lion", "adamw"])
def test_states_of_the_elementwise_algorithms_lie_as_their_parameter(algorithm):
    with fake_world(3, 4):
        param = placed(torch.zeros(5, 3), mesh_of(a=2, b=2), S1, S0)
        states = states_of(param, algorithm=algorithm)
        for key in ("momentum", "variance")[: 1 + (algorithm == "adamw")]:
            assert states[key].placements == (S1, S0)
            assert states[key].to_local().shape == (2, 1)


def prepared(config: Any = None, orientation: str = "right") -> tuple[list[Parameter], torchdion.Dion]:
    """Three kinds of parameters on a 2×2 mesh, with states that are not zero."""
    mesh = mesh_of(fs=2, tp=2)
    params = [
        wrapped(numbered(8, 12), mesh, ("fs",), ROWWISE),
        wrapped(numbered(8, 12), mesh, ("fs",), COLWISE),
        placed(numbered(6), mesh, S0, Replicate()),
    ]
    optimizer = torchdion.Dion(params, rank_fraction=0.25, mixed_precision_config=config, orientation=orientation)
    give_gradients(params, 1.0)
    optimizer._core.make_states(optimizer)
    for state in optimizer.state.values():
        local_part(state["momentum"]).normal_()
        state["step"] += 3
    return params, optimizer


def give_gradients(params: list[Parameter], scale: float) -> None:
    for param in params:
        param.grad = (param.detach() * scale).sin()


def file_of(state_dict: dict[str, Any]) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(state_dict, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("config", [None, HALF])
@pytest.mark.parametrize("how", ["memory", "file"])
def test_states_that_lie_as_their_parameters_are_loaded_with_the_configured_dtypes(how, config):
    with fake_world(1, 4):
        optimizer = prepared(config)[1]
        saved = optimizer.state_dict()
        saved = copy.deepcopy(saved) if how == "memory" else torch.load(file_of(saved), weights_only=False)
        params, resumed = prepared(config)
        resumed.load_state_dict(saved)
        for param, original in zip(params, optimizer.state.values(), strict=True):
            for key, value in original.items():
                loaded = resumed.state[param][key]
                assert loaded.dtype == value.dtype
                assert getattr(loaded, "placements", None) == getattr(value, "placements", None)
                assert local_part(loaded).shape == local_part(value).shape
                assert torch.equal(local_part(loaded), local_part(value))
                assert local_part(loaded).data_ptr() != local_part(saved["state"][0].get(key, value)).data_ptr()


def test_a_loaded_Q_keeps_its_orientation_and_with_it_its_placements():
    with fake_world(1, 4):
        saved = prepared(orientation="left")[1].state_dict()
        params, optimizer = prepared()
        saved["param_groups"][0]["orientation"] = "right"  # what a new Q gets
        optimizer.load_state_dict(saved)
        Q = optimizer.state[params[0]]["Q"]
        assert (Q.shape, Q.placements) == ((12, 2), (S1, S0))
        give_gradients(params, 1.0)
        optimizer._core.make_states(optimizer)


def other_placements(value: DTensor) -> DTensor:
    return placed(torch.zeros(value.shape), value.device_mesh, *reversed(value.placements)).data


@pytest.mark.parametrize("key", ["momentum", "Q"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda value: torch.zeros(value.shape), "must be a DTensor as its parameter is, got a plain tensor$"),
        (other_placements, r"must be placed as \(Shard\(dim=0\), Shard\(dim=1\)\) on .*, got \(Shard\(dim=1\)"),
    ],
    ids=["plain", "other placements"],
)
def test_states_that_lie_elsewhere_are_refused_by_name_and_nothing_is_loaded(key, change, sentence):
    with fake_world(1, 4):
        params, optimizer = prepared()
        saved = copy.deepcopy(optimizer.state_dict())
        saved["state"][0][key] = change(saved["state"][0][key])
        before = {name: local_part(value).clone() for name, value in optimizer.state[params[0]].items()}
        with pytest.raises(ValueError, match=rf"^torchdion.Dion: the state {key} of parameter 0 .* {sentence}"):
            optimizer.load_state_dict(saved)
        for name, value in optimizer.state[params[0]].items():
            assert torch.equal(local_part(value), before[name])


def test_a_DTensor_state_of_a_plain_parameter_is_refused_by_name():
    with fake_world(1, 4):
        saved = prepared()[1].state_dict()
        params = [Parameter(numbered(8, 12)), Parameter(numbered(8, 12)), Parameter(numbered(6))]
        with pytest.raises(
            ValueError, match=r"the state momentum of parameter 0 .* must be a plain tensor .* DTensor$"
        ):
            torchdion.Dion(params, rank_fraction=0.25).load_state_dict(saved)


def test_a_parameter_that_is_cut_anew_under_its_state_is_refused_by_name():
    with fake_world(1, 4):
        params, optimizer = prepared()
        replaced = placed(numbered(8, 12), mesh_of(fs=2, tp=2), S1, S0)
        replaced.grad = torch.ones_like(replaced)
        optimizer.param_groups[0]["params"][0] = replaced
        optimizer.state[replaced] = optimizer.state.pop(params[0])
        with pytest.raises(
            ValueError, match=r"the state momentum of parameter 0 .* must be placed as \(Shard\(dim=1\)"
        ):
            optimizer.step()


def goes_on(rank: int, world_size: int, how: str) -> None:
    params, optimizer = prepared()
    optimizer.step()
    both = {"optimizer": optimizer, "params": params}
    twin = copy.deepcopy(both) if how == "deepcopy" else pickle.loads(pickle.dumps(both))
    for who in (both, twin):
        give_gradients(who["params"], 2.0)
        who["optimizer"].step()
    for theirs, own in zip(twin["params"], params, strict=True):
        assert theirs.placements == own.placements
        assert theirs.to_local().data_ptr() != own.to_local().data_ptr()
        assert torch.equal(theirs.to_local(), own.to_local())
        for key, value in optimizer.state[own].items():
            assert torch.equal(local_part(twin["optimizer"].state[theirs][key]), local_part(value))


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_of_a_trained_optimizer_goes_on_as_the_original(how):
    run_ranks(goes_on, 4, how)
