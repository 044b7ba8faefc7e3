"""Others write, remove, move and put back states and groups: a step goes on, or says one sentence."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint.state_dict as dcp
from refused import assert_refused_before_any_write, untrained
from torch import Tensor, nn
from torch.nn import Parameter

import torchdion
from torchdion.table import ALGORITHMS, STATE_DTYPES

FOREIGN: dict[str, Callable[[Tensor], Any]] = {
    "z": lambda param: param.detach().clone(),
    "mask": lambda param: (param.detach() > 0).to_sparse(),
    "count": lambda param: torch.tensor(3, dtype=torch.int64),
    "name": lambda param: "weight",
    "nothing": lambda param: None,
}


def give_gradients(params: list[Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator)


def made(algorithm: str = "dion", **options: Any) -> tuple[list[Parameter], torchdion.Dion]:
    generator = torch.Generator().manual_seed(0)
    params = [Parameter(torch.randn(shape, generator=generator)) for shape in ((6, 4), (7,))]
    named = [("weight", params[0]), ("bias", params[1])]
    return params, torchdion.Dion([{"params": named, "algorithm": algorithm}], rank_fraction=0.5, lr=0.1, **options)


def run(params: list[Parameter], optimizer: torchdion.Dion, first: int, last: int) -> None:
    for step in range(first, last):
        give_gradients(params, step)
        optimizer.step()


def are_kept(state: dict[str, Any], before: dict[str, Any]) -> bool:
    return all(state[key] is value for key, value in before.items())


# ---- entries of others ----


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_entries_of_others_before_the_first_step_lie_beside_ours_and_change_nothing(algorithm):
    params, optimizer = made(algorithm)
    others, reference = made(algorithm)
    for param in params:
        optimizer.state[param].update({key: make(param) for key, make in FOREIGN.items()})
    dictionaries = [optimizer.state[param] for param in params]
    before = [dict(state) for state in dictionaries]
    run(params, optimizer, 0, 3)
    run(others, reference, 0, 3)
    assert all(map(torch.equal, params, others))
    for param, other, state, foreign in zip(params, others, dictionaries, before, strict=True):
        assert optimizer.state[param] is state  # which a wrapper may hold
        assert are_kept(state, foreign)
        assert state.keys() - foreign.keys() == reference.state[other].keys()


def test_an_entry_of_others_that_is_no_tensor_may_have_the_name_of_another_algorithms_state():
    params, optimizer = made("muon")
    run(params, optimizer, 0, 1)
    for param in params:
        optimizer.state[param]["Q"] = "mine"
    run(params, optimizer, 1, 3)
    assert [optimizer.state[param]["Q"] for param in params] == ["mine", "mine"]


def test_a_first_step_that_is_refused_leaves_entries_of_others_alone():
    params, optimizer = untrained()
    for param in params[:2]:
        optimizer.state[param]["z"] = torch.ones(2)
    params[-1].grad = params[-1].detach().to_sparse()
    assert_refused_before_any_write(params, optimizer, RuntimeError, "gradients must be dense")
    assert all(optimizer.state[param].keys() == {"z"} for param in params[:2])
    assert optimizer.state.keys() == set(params[:2])
    params[-1].grad = torch.ones(5, 4)
    optimizer.step()
    assert "momentum" in optimizer.state[params[0]]


@pytest.mark.parametrize("when", ["before the first step", "after two steps"])
def test_state_dicts_keep_entries_of_others(when):
    """All but texts, which torch loads as something else."""
    params, optimizer = made()
    if when != "before the first step":
        run(params, optimizer, 0, 2)
    for param in params:
        optimizer.state[param].update({key: make(param) for key, make in FOREIGN.items() if key != "name"})
    copied = copy.deepcopy(optimizer)
    optimizer.resize_rank(0.25)
    whole, saved = optimizer.whole_state_dict(), copy.deepcopy(optimizer.state_dict())
    twins, another = made()
    another.load_state_dict(saved)
    for dictionary in (whole["state"], saved["state"], another.state_dict()["state"], copied.state_dict()["state"]):
        for key, param in enumerate(params):
            assert dictionary[key].keys() == optimizer.state[param].keys()
            assert torch.equal(dictionary[key]["z"], optimizer.state[param]["z"])
            assert dictionary[key]["mask"].layout == torch.sparse_coo
    with torch.no_grad():
        for twin, param in zip(twins, params, strict=True):
            twin.copy_(param)
    run(params, optimizer, 2, 4)
    run(twins, another, 2, 4)
    assert all(map(torch.equal, params, twins))


def test_distributed_checkpoints_keep_entries_of_others():
    model, other = nn.Linear(6, 4), nn.Linear(6, 4)
    optimizer, another = torchdion.Muon(model.parameters()), torchdion.Muon(other.parameters())
    for param in model.parameters():
        optimizer.state[param]["z"] = torch.full_like(param, 3.0)
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    saved = copy.deepcopy(dcp.get_optimizer_state_dict(model, optimizer))
    dcp.set_optimizer_state_dict(other, another, saved)
    for param in other.parameters():
        assert torch.equal(another.state[param]["z"], torch.full_like(param, 3.0))
        assert another.state[param]["step"] == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_entries_of_ours_that_are_there_in_part_are_a_damaged_state(algorithm):
    for lost in [state.name for state in ALGORITHMS[algorithm].states] + ["step"]:
        params, optimizer = made(algorithm)
        run(params, optimizer, 0, 1)
        optimizer.state[params[0]]["z"] = torch.ones(2)
        del optimizer.state[params[0]][lost]
        give_gradients(params, 1)
        assert_refused_before_any_write(params, optimizer, ValueError, rf"^torchdion.Dion: the state .*{lost}")


def test_the_state_of_another_optimizer_is_not_taken_for_entries_of_others():
    X = Parameter(torch.ones(6, 4))
    other = torch.optim.SGD([X], momentum=0.9)
    X.grad = torch.ones(6, 4)
    other.step()
    with pytest.raises(ValueError, match="lacks the tensor 'momentum'"):
        torchdion.Muon([X]).load_state_dict(other.state_dict())


# ---- lists of parameters ----


def change_append(params: list[Parameter], new: Parameter) -> None:
    params.append(new)


def change_insert(params: list[Parameter], new: Parameter) -> None:
    params.insert(0, new)


def change_remove(params: list[Parameter], new: Parameter) -> None:
    del params[0]


@pytest.mark.parametrize("change", [change_append, change_insert, change_remove])
@pytest.mark.parametrize("has_stepped", [False, True])
def test_a_named_group_steps_with_the_parameters_that_others_have_left_in_it(change, has_stepped):
    params, optimizer = made()
    if has_stepped:
        run(params, optimizer, 0, 1)
    new, group = Parameter(torch.ones(5, 4)), optimizer.param_groups[0]
    change(group["params"], new)
    before = [param.detach().clone() for param in group["params"]]
    run(group["params"], optimizer, 1, 2)
    assert not any(map(torch.equal, group["params"], before))
    position = len(group["params"]) - 1
    optimizer.state[group["params"][position]]["momentum"] = None
    sentence = rf"^torchdion.Dion: the state momentum of parameter {position} \(parameter group 0\) must be a tensor"
    with pytest.raises(ValueError, match=sentence):  # a name might be another's
        optimizer.step()


@pytest.mark.parametrize("change", [change_append, change_insert])
def test_a_checkpoint_with_fewer_names_than_parameters_loads(change):
    states = []
    for _ in range(2):
        _, optimizer = made()
        change(optimizer.param_groups[0]["params"], Parameter(torch.ones(5, 4)))
        states.append(optimizer)
    first, second = states
    run(first.param_groups[0]["params"], first, 0, 2)
    saved = copy.deepcopy(first.state_dict())
    assert saved["param_groups"][0]["param_names"] == ["weight", "bias"]
    second.load_state_dict(saved)
    assert [float(state["step"]) for state in second.state.values()] == [2, 2, 2]
    second.param_groups[0]["param_names"] = None
    second.load_state_dict(saved | {"param_groups": [saved["param_groups"][0] | {"param_names": ["a"] * 9}]})
    run(second.param_groups[0]["params"], second, 2, 3)


def test_a_parameter_that_is_there_twice_is_refused_before_any_write():
    params, optimizer = made()
    optimizer.param_groups[0]["params"].append(params[0])
    give_gradients(params, 0)
    sentence = r"^torchdion.Dion: parameter 2 \(parameter group 0\) is given twice$"
    assert_refused_before_any_write(params, optimizer, ValueError, sentence)


def test_a_state_of_a_parameter_that_is_in_no_group_is_refused_where_it_would_be_saved():
    params, optimizer = made()
    run(params, optimizer, 0, 1)
    kept = optimizer.param_groups[0]["params"].pop(0)
    optimizer.step()
    sentence = r"^torchdion.Dion: optimizer.state must be of parameters of its groups, got .* of shape \(6, 4\)"
    with pytest.raises(ValueError, match=sentence):
        optimizer.state_dict()
    del optimizer.state[kept]
    assert len(optimizer.state_dict()["state"]) == 1


# ---- states that are moved, taken off and put back ----


COUNTERS = {
    "FP64": lambda step: step.double(),
    "one element": lambda step: step.reshape(1),
    "an integer": lambda step: step.long(),
    "one short integer": lambda step: step.to(torch.int16).reshape(1),
}


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("counter", COUNTERS)
def test_a_count_of_another_form_counts_on(counter, capturable):
    params, optimizer = made("adamw", capturable=capturable)
    others, reference = made("adamw", capturable=capturable)
    run(params, optimizer, 0, 2)
    run(others, reference, 0, 2)
    for state in optimizer.state.values():
        state["step"] = COUNTERS[counter](state["step"])
    run(params, optimizer, 2, 4)
    run(others, reference, 2, 4)
    assert all(map(torch.equal, params, others))  # of which AdamW's correction of its start follows the count
    assert [float(state["step"]) for state in optimizer.state.values()] == [4, 4]


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize(
    "lost", [torch.tensor(2.0, device="meta"), torch.tensor(2.0).bfloat16(), torch.ones(2)], ids=str
)
def test_a_count_that_cannot_be_read_is_refused_before_any_write(lost, capturable):
    params, optimizer = made(capturable=capturable)
    run(params, optimizer, 0, 1)
    give_gradients(params, 1)
    step, optimizer.state[params[1]]["step"] = optimizer.state[params[1]]["step"], lost
    sentence = "^torchdion.Dion: the state step of a parameter of shape .7. must be one"
    with pytest.raises(ValueError, match=sentence):
        optimizer.step()
    optimizer.state[params[1]]["step"] = step
    optimizer.step()
    assert float(step) == 2


@pytest.mark.parametrize("taken", ["entries", "states of parameters", "all states"])
def test_states_that_are_taken_off_and_put_back_go_on_as_if_they_had_stayed(taken):
    params, optimizer = made()
    others, reference = made()
    run(params, optimizer, 0, 2)
    run(others, reference, 0, 2)
    states = optimizer.state
    if taken == "entries":
        kept = {param: {key: value.clone() for key, value in state.items()} for param, state in states.items()}
        for state in states.values():
            state.clear()
        for param, state in kept.items():
            states[param].update(state)
    elif taken == "states of parameters":
        kept = {param: states.pop(param) for param in params}
        assert optimizer.state_dict()["state"] == {}
        states.update(kept)
    else:
        optimizer.state = {}
        optimizer.stats()
        optimizer.state = states
    run(params, optimizer, 2, 4)
    run(others, reference, 2, 4)
    assert all(map(torch.equal, params, others))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_states_that_are_cast_and_cast_back_go_on(algorithm):
    params, optimizer = made(algorithm)
    others, reference = made(algorithm)
    run(params, optimizer, 0, 2)
    run(others, reference, 0, 2)
    for dtype in (torch.float64, torch.float32):
        for state in optimizer.state.values():
            state.update({key: value.to(dtype) for key, value in state.items()})
    run(params, optimizer, 2, 4)
    run(others, reference, 2, 4)
    assert all(map(torch.equal, params, others))


@pytest.mark.parametrize("key", [*STATE_DTYPES, "step"])
@pytest.mark.parametrize("value", [None, "offloaded", torch.ones(6, 4).numpy()], ids=["None", "text", "array"])
def test_what_stands_in_for_a_state_is_refused_before_any_write(key, value):
    for algorithm in ALGORITHMS:
        params, optimizer = made(algorithm)
        run(params, optimizer, 0, 1)
        if key not in optimizer.state[params[0]]:
            continue
        give_gradients(params, 1)
        optimizer.state[params[0]][key] = value
        sentence = (
            rf"^torchdion.Dion: the state {key} of parameter 'weight' .* must be a tensor, got {type(value).__name__}$"
        )
        with pytest.raises(ValueError, match=sentence):
            optimizer.step()
