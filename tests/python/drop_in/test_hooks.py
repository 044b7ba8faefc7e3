"""Hooks around step, state_dict and load_state_dict, of one optimizer and of all, and the profiler's."""

import pytest
import torch
from regression import closure, parameters, trained
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.profiler import ProfilerActivity, profile

import torchdion


@pytest.mark.parametrize("kind", ["pre", "post"])
def test_a_step_hook_runs_once_a_step_until_it_is_removed(kind):
    _, optimizer = trained(1)
    calls = []
    register = getattr(optimizer, f"register_step_{kind}_hook")
    handle = register(lambda *arguments: calls.append(arguments))
    optimizer.step()
    optimizer.step(closure=None)
    assert calls == [(optimizer, (optimizer,), {}), (optimizer, (optimizer,), {"closure": None})]
    handle.remove()
    optimizer.step()
    assert len(calls) == 2


def test_hooks_run_from_the_outside_in_and_back_out_around_the_update():
    """Those of all optimizers first and last; another optimizer does not see this one's own."""
    params, optimizer = trained(1)
    other = torch.optim.SGD(parameters())
    start, seen = params[0].detach().clone(), []

    def note(name):
        return lambda *_: seen.append((name, torch.equal(params[0], start)))

    handles = [
        register_optimizer_step_pre_hook(note("global pre")),
        register_optimizer_step_post_hook(note("global post")),
        optimizer.register_step_pre_hook(note("pre")),
        optimizer.register_step_post_hook(note("post")),
    ]
    try:
        optimizer.step()
        assert seen == [("global pre", True), ("pre", True), ("post", False), ("global post", False)]
        other.step()
        assert [name for name, _ in seen[4:]] == ["global pre", "global post"]
    finally:
        for handle in handles:
            handle.remove()
    optimizer.step()
    assert len(seen) == 6


def test_a_step_pre_hook_may_replace_the_arguments_of_step():
    params, optimizer = trained(1)
    optimizer.register_step_pre_hook(lambda self, _args, _kwargs: ((self, lambda: 7.0), {}))
    assert optimizer.step() == 7.0
    assert optimizer.step(closure(optimizer, params)) == 7.0


@pytest.mark.parametrize("algorithm", ["lion", "adamw"])
def test_states_that_a_step_pre_hook_makes_keep_their_dtype(algorithm):
    """As states in BF16 are made for torch's AdamW; here a configuration makes them as well, to the same bits."""
    names = ("momentum", "variance") if algorithm == "adamw" else ("momentum",)

    def make_states(optimizer, _args, _kwargs):
        for param in optimizer.param_groups[0]["params"]:
            if not optimizer.state[param]:
                zeros = {name: torch.zeros_like(param, dtype=torch.bfloat16) for name in names}
                optimizer.state[param] = {"step": torch.tensor(0.0), **zeros}

    configured = torchdion.DionMixedPrecisionConfig(torch.bfloat16, torch.bfloat16, torch.bfloat16)
    params, expected = parameters(), parameters()
    optimizer = torchdion.Dion([{"params": params, "algorithm": algorithm}, {"params": torch.ones(3)}])
    optimizer.register_step_pre_hook(make_states)
    reference = torchdion.Dion([{"params": expected, "algorithm": algorithm}], mixed_precision_config=configured)
    other = optimizer.param_groups[1]["params"][0]
    for _ in range(3):
        closure(optimizer, params)()
        other.grad = torch.ones(3)
        optimizer.step()
        reference.step(closure(reference, expected))
    assert all(map(torch.equal, params, expected))
    assert {optimizer.state[param][name].dtype for param in params for name in names} == {torch.bfloat16}
    assert optimizer.state[other]["momentum"].dtype == torch.float32


def test_a_state_dict_pre_hook_sees_the_state_and_a_post_hook_the_dict():
    _, optimizer = trained(2)
    handles = [optimizer.register_state_dict_pre_hook(lambda self: self.state.__setitem__("mine", {"a": 1}))]
    assert optimizer.state_dict()["state"]["mine"] == {"a": 1}

    def take_out(_, state_dict):
        return {**state_dict, "taken": state_dict["state"].pop("mine")}

    handles.append(optimizer.register_state_dict_post_hook(take_out))
    state_dict = optimizer.state_dict()
    assert state_dict["taken"] == {"a": 1}
    assert set(state_dict["state"]) == {0, 1}
    for handle in handles:
        handle.remove()
    del optimizer.state["mine"]
    assert set(optimizer.state_dict()) == {"state", "param_groups"}


def test_a_state_that_is_no_parameters_disturbs_neither_steps_nor_loading_nor_counting():
    params, optimizer = trained(2)
    size = optimizer.stats()["state_bytes"]
    optimizer.state["mine"] = 1
    assert optimizer.stats()["state_bytes"] == size
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.state["mine"] == 1
    before = params[0].detach().clone()
    optimizer.step()
    assert not torch.equal(params[0], before)


def test_load_state_dict_pre_hooks_run_in_order_or_before_the_others_and_may_replace_the_dict():
    _, optimizer = trained(1)

    def writes(_, state_dict):
        state_dict["param_groups"][0]["lr"] = 0.002

    def replaces(_, state_dict):
        group = {**state_dict["param_groups"][0], "lr": 0.003}
        return {**state_dict, "param_groups": [group]}

    optimizer.register_load_state_dict_pre_hook(writes)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.002
    handle = optimizer.register_load_state_dict_pre_hook(replaces, prepend=True)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.002, "the first is overruled by the second"
    handle.remove()
    optimizer.register_load_state_dict_pre_hook(replaces)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.003


@pytest.mark.parametrize("prepend", [False, True])
def test_what_a_load_state_dict_post_hook_changes_stays(prepend):
    """States have their own dtypes by then, though torch casts them to the parameter's."""
    config = torchdion.DionMixedPrecisionConfig(momentum_dtype=torch.float64)
    [weight, _], optimizer = trained(2, mixed_precision_config=config)
    seen = []

    def double(self):
        seen.append(self.state[weight]["momentum"].dtype)
        self.state[weight]["momentum"].mul_(2)

    momentum = optimizer.state[weight]["momentum"].clone()
    optimizer.register_load_state_dict_post_hook(double, prepend=prepend)
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == [torch.float64]
    assert torch.equal(optimizer.state[weight]["momentum"], 2 * momentum)


def test_loading_leaves_no_hook_behind_even_when_it_fails():
    _, optimizer = trained(1)
    optimizer.load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
    assert not optimizer._optimizer_load_state_dict_pre_hooks
    assert not optimizer._optimizer_load_state_dict_post_hooks


def test_the_profiler_names_step_and_zero_grad():
    _, optimizer = trained(1)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        optimizer.step()
        optimizer.zero_grad()
    names = [event.key for event in profiler.key_averages()]
    assert names.count("Optimizer.step#Dion.step") == 1
    assert names.count("Optimizer.zero_grad#Dion.zero_grad") == 1


def test_one_optimizer_for_each_parameter_may_step_inside_the_backward_pass():
    """register_post_accumulate_grad_hook: gradients are freed before the next one is made."""

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))

    inside, outside, inputs = model(), model(), torch.randn(5, 6)
    optimizers = {param: torchdion.Dion([param], lr=0.05) for param in inside.parameters()}
    references = [torchdion.Dion([param], lr=0.05) for param in outside.parameters()]

    def update(param: Parameter) -> None:
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in inside.parameters():
        param.register_post_accumulate_grad_hook(update)
    for _ in range(4):
        inside(inputs).square().sum().backward()
        assert all(param.grad is None for param in inside.parameters())
        outside(inputs).square().sum().backward()
        for reference in references:
            reference.step()
            reference.zero_grad()
    assert all(map(torch.equal, inside.parameters(), outside.parameters()))
