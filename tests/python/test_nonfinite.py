"""What NaN and infinite gradient entries do under each policy, for each algorithm."""

import copy
import math

import pytest
import torch
from refused import assert_refused_before_any_write, trained
from runs import follow, normals, run
from torch import Tensor
from torch.nn import Parameter

import torchdion

BAD = [math.nan, math.inf, -math.inf]
ALGORITHMS = ["dion", "lion", "adamw"]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def problem(
    algorithm: str, bad: float, dtype: torch.dtype = torch.float32
) -> tuple[list[Tensor], list[list[Tensor]], dict]:
    """Starts and gradients of two parameters; the second step has two bad entries in the first parameter."""
    starts, *gradients = normals(4, (10, 6), (8, 6), dtype=dtype)
    gradients[1][0][3, 2] = bad
    gradients[1][0][9, 0] = bad
    return starts, gradients, {"algorithm": algorithm}


def optimizer_of(starts: list[Tensor], group: dict, **options) -> tuple[list[Parameter], torchdion.Dion]:
    params = [Parameter(X.clone()) for X in starts]
    return params, torchdion.Dion([{"params": params, **group}], rank_fraction=0.5, **options)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_propagate_shows_nan_in_the_weights_at_once_and_nowhere_else(dtype, algorithm, bad):
    starts, gradients, group = problem(algorithm, bad, dtype)
    params, optimizer = optimizer_of(starts, group)
    follow(optimizer, params, gradients[:2])
    if algorithm == "lion" and math.isinf(bad):  # the sign of infinity is ±1; it is the momentum that is not finite
        assert not optimizer.state[params[0]]["momentum"].isfinite().all()
    else:
        assert params[0].isnan().any()
    assert params[1].isfinite().all()
    assert optimizer.stats()["nonfinite_entries"] == 0, "not counted under propagate"
    follow(optimizer, params, gradients[2:])
    assert params[1].isfinite().all()


@pytest.mark.parametrize("orthonormalize", ["rcqr", "cholesky_qr", "qr"])
def test_propagate_does_not_freeze_a_matrix_in_silence(orthonormalize):
    for bad in BAD:
        starts, gradients, group = problem("dion", bad)
        params, optimizer = optimizer_of(starts, group, orthonormalize=orthonormalize)
        follow(optimizer, params, gradients)
        assert params[0].isnan().any()
        assert params[1].isfinite().all()


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_counts_bad_entries_as_zero(dtype, algorithm, bad):
    starts, gradients, group = problem(algorithm, bad, dtype)
    params, optimizer = optimizer_of(starts, group, nonfinite="zero")
    follow(optimizer, params, gradients)
    cleaned = [[G.nan_to_num(0.0, 0.0, 0.0) for G in step] for step in gradients]
    expected, reference = optimizer_of(starts, group)
    follow(reference, expected, cleaned)
    assert all(map(torch.equal, params, expected))
    assert optimizer.stats()["nonfinite_entries"] == 2
    assert optimizer.stats()["skipped_steps"] == 0


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_skip_step_leaves_out_the_whole_step(dtype, algorithm, bad):
    starts, gradients, group = problem(algorithm, bad, dtype)
    params, optimizer = optimizer_of(starts, group, nonfinite="skip_step")
    follow(optimizer, params, gradients)
    expected, reference = optimizer_of(starts, group)
    follow(reference, expected, [gradients[0], gradients[2]])
    assert all(map(torch.equal, params, expected))
    for X, Y in zip(params, expected, strict=True):
        assert optimizer.state[X]["step"] == reference.state[Y]["step"] == 2
        assert torch.equal(optimizer.state[X]["momentum"], reference.state[Y]["momentum"])
    stats = optimizer.stats()
    assert (stats["skipped_steps"], stats["nonfinite_entries"], stats["steps"]) == (1, 2, 3)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_raise_raises_before_anything_is_written(dtype, algorithm, bad):
    starts, gradients, group = problem(algorithm, bad, dtype)
    params, optimizer = optimizer_of(starts, group, nonfinite="raise")
    follow(optimizer, params, gradients[:1])
    weights = copy.deepcopy(params)
    state = copy.deepcopy(optimizer.state_dict()["state"])
    with pytest.raises(ValueError, match=r"^torchdion.Dion: 2 gradient entries are NaN or infinite"):
        follow(optimizer, params, gradients[1:2])
    assert all(map(torch.equal, params, weights))
    for index, values in optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, state[index][key]) for key, value in values.items())
    follow(optimizer, params, gradients[2:])
    expected, reference = optimizer_of(starts, group)
    follow(reference, expected, [gradients[0], gradients[2]])
    assert all(map(torch.equal, params, expected))


@pytest.mark.parametrize("policy", ["zero", "skip_step", "raise"])
def test_finite_gradients_are_untouched_by_every_policy(policy):
    starts, *gradients = normals(4, (10, 6), (8,), dtype=torch.float32)
    gradients[0][0][0, 0] = torch.finfo(torch.float32).max / 1e8
    gradients[1][0][0, 1] = 1e-45
    expected = run(starts, gradients)
    assert all(map(torch.equal, run(starts, gradients, nonfinite=policy), expected))


@pytest.mark.parametrize("policy", ["zero", "skip_step"])
def test_all_bad_entries_of_all_parameters_are_counted(policy):
    shapes = [(10, 6), (3, 7, 5), (2000,), (), (4, 3, 2, 2)]
    params = [Parameter(X) for X in normals(1, *shapes, dtype=torch.float32)[0]]
    groups = [
        {"params": params[:1]},
        {"params": params[1:2], "batch_dims": 1},
        {"params": params[2:4], "algorithm": "adamw"},
        {"params": params[4:]},
    ]
    optimizer = torchdion.Dion(groups, nonfinite=policy)
    gradients = [torch.full_like(param, bad) for param, bad in zip(params, BAD + BAD[:2], strict=True)]
    gradients[2][:500] = 1.0
    gradients[4] = gradients[4].to(memory_format=torch.channels_last)
    follow(optimizer, params, [gradients] * 2)
    assert optimizer.stats()["nonfinite_entries"] == 2 * (60 + 105 + 1500 + 1 + 48)
    assert all(param.isfinite().all() for param in params)


@pytest.mark.parametrize("policy", ["zero", "skip_step"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_count_does_not_depend_on_threads(policy, threads):
    torch.set_num_threads(threads)
    params = [Parameter(torch.zeros(300, 200)), Parameter(torch.zeros(50_000))]
    G = torch.ones(300, 200)
    G[::3, ::7] = math.nan
    g = torch.ones(50_000)
    g[::11] = math.inf
    optimizer = torchdion.Dion(params, nonfinite=policy)
    follow(optimizer, params, [[G, g]])
    assert optimizer.stats()["nonfinite_entries"] == 100 * 29 + 4546


@pytest.mark.parametrize("how", ["by hand", "loaded"])
def test_a_policy_set_in_all_groups_holds_from_the_next_step(how):
    """A run that resumes goes on under the policy that it was saved with."""
    other = trained(nonfinite="skip_step")[1]
    params, optimizer = trained()
    if how == "loaded":
        optimizer.load_state_dict(other.state_dict())
    else:
        for group in optimizer.param_groups:
            group["nonfinite"] = "skip_step"
    before = [param.detach().clone() for param in params]
    params[-1].grad = torch.full_like(params[-1], math.nan)
    optimizer.step()
    assert all(map(torch.equal, params, before))
    assert optimizer.stats()["skipped_steps"] == 1
    added = Parameter(torch.ones(3, 3))
    optimizer.add_param_group({"params": [added]})
    assert optimizer.param_groups[-1]["nonfinite"] == "skip_step"
    with pytest.raises(ValueError, match=r"^torchdion.Dion: nonfinite holds for the whole optimizer, got 'propagate'"):
        optimizer.add_param_group({"params": [Parameter(torch.ones(2))], "nonfinite": "propagate"})


def test_a_policy_set_in_one_group_alone_is_refused_before_any_write():
    params, optimizer = trained()
    optimizer.param_groups[2]["nonfinite"] = "raise"
    sentence = r"nonfinite must be the same in all groups, got 'raise' \(parameter group 2\) beside 'propagate'$"
    assert_refused_before_any_write(params, optimizer, ValueError, sentence)


def test_a_loaded_policy_that_capturable_forbids_is_refused_at_loading():
    saved = trained(nonfinite="raise")[1].state_dict()
    params, optimizer = trained(capturable=True)
    sentence = r"^torchdion.Dion: nonfinite='raise' cannot be combined with capturable=True"
    assert_refused_before_any_write(params, optimizer, ValueError, sentence, lambda: optimizer.load_state_dict(saved))
