"""A group shows the options of its algorithms, those of its optimizer's, and no others."""

import pickle

import pytest
import torch
from torch.nn import Parameter

import torchdion
from torchdion.optimizer import Optimizer
from torchdion.options import DEFAULTS
from torchdion.table import ALGORITHMS, OPTIONS


def params():
    generator = torch.Generator().manual_seed(0)
    made = [Parameter(torch.randn(6, 4, generator=generator)), Parameter(torch.randn(4, generator=generator))]
    for param in made:
        param.grad = torch.randn(param.shape, generator=generator)
    return made


def options_of(*algorithms):
    """By the table."""
    return {
        name
        for name, declared in OPTIONS.items()
        if declared["of_optimizer"] or set(algorithms) & set(declared["algorithms"])
    }


def shown(optimizer, index=0):
    return set(optimizer.param_groups[index]) - {"params", "differentiable"}


@pytest.mark.parametrize("scalar_algorithm", ["lion", "adamw"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_group_has_the_options_of_its_algorithms_alone(algorithm, scalar_algorithm):
    made_by = Optimizer.of(algorithm)
    takes_matrices = ALGORITHMS[algorithm].takes_matrices
    optimizer = made_by(params(), **({"scalar_algorithm": scalar_algorithm} if takes_matrices else {}))
    own = options_of(algorithm, scalar_algorithm) if takes_matrices else options_of(algorithm)
    assert shown(optimizer) == own < OPTIONS.keys()
    optimizer.step()
    assert shown(optimizer) == own
    assert all(f" {name}: " in repr(optimizer) for name in own)


def test_a_group_of_another_algorithm_has_that_ones_too():
    optimizer = torchdion.Dion([{"params": params()}, {"params": params(), "algorithm": "muon", "ns_steps": 3}])
    assert shown(optimizer) == options_of("dion", "lion")
    assert shown(optimizer, 1) == options_of("dion", "muon", "lion")
    optimizer.step()
    assert optimizer.param_groups[1]["ns_steps"] == 3


def test_an_algorithm_that_is_written_brings_its_options_and_takes_them_along():
    optimizer = torchdion.Dion([{"params": params(), "mu": 0.5}])
    group = optimizer.param_groups[0]
    group["algorithm"] = "normuon"
    optimizer.step()
    assert shown(optimizer) == options_of("dion", "normuon", "lion")
    assert group["muon_beta2"] == DEFAULTS["muon_beta2"] and group["mu"] == 0.5
    optimizer.state.clear()
    group["algorithm"] = "dion"
    optimizer.step()
    assert shown(optimizer) == options_of("dion", "lion")


def test_an_option_of_others_that_is_written_stays_with_a_warning():
    optimizer = torchdion.Dion(params())
    optimizer.param_groups[0]["chunk_size"] = 32
    with pytest.warns(UserWarning, match="the option 'chunk_size'.* is kept and ignored: it is an option of demo"):
        optimizer.step()
    assert optimizer.param_groups[0]["chunk_size"] == 32
    other = torchdion.Dion(params())
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["chunk_size"] == 32


@pytest.mark.parametrize("how", ["state dict", "pickle"])
def test_what_was_saved_with_all_options_has_its_own_when_it_is_loaded(how):
    """As versions up to 0.2 have saved it."""
    optimizer = torchdion.Muon(params(), ns_steps=4)
    optimizer.step()
    if how == "pickle":
        optimizer.param_groups[0] |= {**DEFAULTS, **optimizer.param_groups[0]}
        optimizer.defaults |= {**DEFAULTS, **optimizer.defaults}
        loaded = pickle.loads(pickle.dumps(optimizer))
    else:
        loaded = torchdion.Muon(params())
        saved = optimizer.state_dict()
        assert OPTIONS.keys() > saved["param_groups"][0].keys() - {"params", "differentiable"}
        saved["param_groups"][0] |= {**DEFAULTS, **saved["param_groups"][0]}
        loaded.load_state_dict(saved)
    assert shown(loaded) == options_of("muon", "lion")
    assert loaded.param_groups[0]["ns_steps"] == 4


def test_a_state_dict_of_another_optimizers_options_loads():
    """Those of both that it lacks are as the optimizer was made with."""
    optimizer = torchdion.Dion(params(), rank_fraction=0.5)
    saved = torchdion.Lion(params()).state_dict()
    optimizer.load_state_dict(saved)
    assert shown(optimizer) == options_of("dion", "lion")
    assert optimizer.param_groups[0]["algorithm"] == "lion" and optimizer.param_groups[0]["rank_fraction"] == 0.5
