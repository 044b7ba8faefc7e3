"""What NaN and infinite gradient entries do under each policy, for each algorithm."""

import copy
import math

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from refused import assert_refused_before_any_write, trained
from runs import follow, normals, run
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter

import torchdion
from torchdion.dtensor import local_part
from torchdion.table import ALGORITHMS

BAD = [math.nan, math.inf, -math.inf]
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
    if math.isnan(bad) or algorithm in ("dion", "adamw"):
        assert params[0].isnan().any()
    else:  # the sign of infinity is ±1; it is the momentum that is not finite
        assert not optimizer.state[params[0]]["momentum"].isfinite().all()
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


# The momentum of constant gradients of 5000 tends to 100,000 and AdamW's variance to 2.5e7, both beyond FP16.
LARGE = (5000.0, 60000.0)
LARGE_GROUPS = [
    {"rank_fraction": 1.0},
    {"rank_fraction": 0.25, "orthonormalize": "rcqr", "orientation": "left"},
    {"algorithm": "lion"},
    {"algorithm": "adamw"},
]


def large_gradients() -> list[Tensor]:
    """Constant ones, and signs and sizes of all kinds, of each magnitude."""
    normal = normals(1, (16, 12))[0][0].clamp(-1, 1)
    return [largest * pattern for largest in LARGE for pattern in (torch.ones(16, 12).double(), normal)]


def after_large_gradients(dtype: torch.dtype, state: torch.dtype, place=torch.clone, **options) -> list[Parameter]:
    """One parameter per group and gradient, that began at zero."""
    gradients = [place(G.to(dtype)) for G in large_gradients()]
    config = torchdion.DionMixedPrecisionConfig(state, torch.float32, state)
    groups = [{"params": [Parameter(torch.zeros_like(G)) for G in gradients], **group} for group in LARGE_GROUPS]
    optimizer = torchdion.Dion(groups, lr=1e-3, weight_decay=0.0, mixed_precision_config=config, **options)
    for _ in range(40):
        for group in optimizer.param_groups:
            for param, G in zip(group["params"], gradients, strict=True):
                param.grad = G.clone()
        optimizer.step()
    for states in optimizer.state.values():
        assert all(local_part(value).isfinite().all() for value in states.values() if isinstance(value, Tensor))
    assert optimizer.stats()["nonfinite_entries"] == 0
    return [param for group in optimizer.param_groups for param in group["params"]]


def assert_point_the_same_way(weights: list[Tensor], state: torch.dtype) -> None:
    """As with FP64 states; AdamW's steps are up to 1 / sqrt(1 − β₂) = 4.5 times as long where variances end."""
    expected = after_large_gradients(torch.float64, torch.float64)
    for place, (X, Y) in enumerate(zip(weights, expected, strict=True)):
        algorithm = LARGE_GROUPS[place // 4].get("algorithm", "dion")
        x, y = X.detach().double(), Y.detach()
        cosine = torch.nn.functional.cosine_similarity(x.flatten(), y.flatten(), dim=0)
        assert cosine > (0.99 if state == torch.bfloat16 else 0.6), (algorithm, place)
        longest = 4.5 if state == torch.float16 and algorithm == "adamw" else 1.5
        assert 0.9 < x.norm() / y.norm() < longest, (algorithm, place)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("policy", ["propagate", "zero", "skip_step"])
def test_finite_gradients_never_make_fp16_states_infinite(policy, capturable):
    weights = after_large_gradients(torch.float16, torch.float16, nonfinite=policy, capturable=capturable)
    assert_point_the_same_way(weights, torch.float16)


@pytest.mark.parametrize("state", [torch.bfloat16, torch.float16])
def test_fp16_and_fp32_weights_of_16_bit_states_go_where_those_of_fp64_go(state):
    for dtype in (torch.float16, torch.float32):
        assert_point_the_same_way(after_large_gradients(dtype, state), state)


def after_large_gradients_on_ranks(rank: int, world_size: int) -> list[list[Tensor]]:
    found = [after_large_gradients(torch.float16, torch.float16, replicate_mesh=dist.group.WORLD)]
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("fs",))
    for dim in (0, 1):

        def place(full: Tensor, dim: int = dim) -> Tensor:
            return distribute_tensor(full, mesh, [Shard(dim)], src_data_rank=None)

        weights = after_large_gradients(torch.float16, torch.float16, place)
        found.append([param.full_tensor() for param in weights])
    return [[param.detach() for param in weights] for weights in found]


def test_finite_gradients_never_make_fp16_states_infinite_on_any_layout():
    for layouts in run_ranks(after_large_gradients_on_ranks, 2):
        for weights in layouts:
            assert_point_the_same_way(weights, torch.float16)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fp16_weights_end_at_the_largest_number(algorithm):
    X = Parameter(torch.full((4, 4), 65504.0, dtype=torch.float16))
    optimizer = torchdion.Dion([{"params": [X], "algorithm": algorithm}], lr=1000.0, weight_decay=0.0)
    for _ in range(3):
        X.grad = -torch.eye(4, dtype=torch.float16)
        optimizer.step()
    assert X.isfinite().all()
    assert X.max() == 65504
    if algorithm not in ("double_dion", "demo"):  # whose updates are so coarse that they lessen some entries
        assert (X == 65504).all()


def test_momenta_beyond_fp16_are_loaded_as_the_largest_number_and_infinite_ones_as_what_they_are():
    wide, narrow = Parameter(torch.ones(3, 4)), Parameter(torch.ones(3, 4, dtype=torch.float16))
    optimizer, other = torchdion.Dion([wide]), torchdion.Dion([narrow])
    follow(optimizer, [wide], [[torch.full((3, 4), -1e6)]])
    optimizer.state[wide]["momentum"][0, 0] = math.inf
    other.load_state_dict(optimizer.state_dict())
    momentum = other.state[narrow]["momentum"].flatten()
    assert momentum[0] == math.inf
    assert (momentum[1:] == -65504).all()
