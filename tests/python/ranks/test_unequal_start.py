"""Replicas that start from unequal weights: a sentence on every rank at the first step, and the first one's weights."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from small_optimizers import copied, give_other_gradients, params_of, replicated
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn import LazyLinear, Linear, Parameter, Sequential
from wrapped import Copying, Refusing

import torchdion
from torchdion import replicas
from torchdion.dtensor import local_part

SIZES = {"tall": (16, 6), "square": (12, 12), "vector": (5,)}
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("Dion", {"rank_fraction": 0.25}),
    ("Muon", {}),
    ("NorMuon", {}),
    ("Dion2", {}),
    ("Dion3", {}),
    ("DoubleDion", {}),
    ("DoubleDion", {"delayed": True}),
    ("DeMo", {}),
    ("Lion", {}),
    ("AdamW", {"capturable": True}),
    ("DistMuon", {}),
    ("DistAdamW", {"replicate_mesh_grad_sync": False}),
]
END = (
    "; all get the first one's weights and states now, as synchronize_replicas() before the first backward pass gives "
    "them"
)


def sentence(title: str, names: str) -> str:
    return f"{title}: replicas must start alike, and differ in {names}{END}"


def said_by(act: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(warning.message) for warning in caught]


def parameters(dtype: torch.dtype = torch.float32) -> list[tuple[str, Parameter]]:
    generator = torch.Generator().manual_seed(1)
    return [(name, Parameter(torch.randn(size, generator=generator).to(dtype))) for name, size in SIZES.items()]


def flip_a_bit(weight: Tensor) -> None:
    """The last one of the last number."""
    weight.detach().view(torch.int32).view(-1)[-1] ^= 1


def made(name: str, params: Any, **options: Any) -> Any:
    return getattr(torchdion, name)(params, lr=0.1, **{"replicate_mesh": dist.group.WORLD, **options})


def step(optimizer: Any, rank: int, number: int = 0) -> None:
    own = 0 if not optimizer._layouts.meshes.averages else rank  # else gradients are averaged before
    for index, param in enumerate(params_of(optimizer)):
        if param.requires_grad:
            generator = torch.Generator().manual_seed(100 * number + 10 * index + own)
            param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
    optimizer.step()


def calls_of_agreement(optimizer: Any) -> int:
    return sum(kinds["agreement"]["calls"] for kinds in optimizer.stats()["traffic"].values())


def equal_on_all_ranks(tensor: Tensor) -> bool:
    pieces = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, tensor.detach().contiguous())
    return all(torch.equal(piece, pieces[0]) for piece in pieces)


def of_one_bit(rank: int, world_size: int, name: str, options: dict[str, Any]) -> None:
    expected = made(name, parameters(), **options)
    assert said_by(lambda: [step(expected, rank, number) for number in range(3)]) == []
    optimizer = made(name, parameters(), **options)
    if rank == 1:
        flip_a_bit(params_of(optimizer)[1])
    said = said_by(lambda: [step(optimizer, rank, number) for number in range(3)])
    assert said == [sentence(f"torchdion.{name}", "parameter 'square' (parameter group 0)")]
    assert all(map(torch.equal, params_of(optimizer), params_of(expected)))
    optimizer.check_replicas()


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=[" ".join((name, *given)) for name, given in OPTIMIZERS])
def test_replicas_of_which_one_bit_differs_say_so_once_and_train_as_the_first(
    name: str, options: dict[str, Any]
) -> None:
    run_ranks(of_one_bit, 2, name, options)


def of_many(rank: int, world_size: int) -> None:
    """The one that differs is neither first nor last."""
    params = [Parameter(torch.full((4, 3), float(rank == 1))) for _ in range(8)]
    optimizer = made("Muon", params)
    [said] = said_by(lambda: step(optimizer, rank))
    names = ", ".join(f"parameter {index} (parameter group 0)" for index in range(5))
    assert said == sentence("torchdion.Muon", names + " and 3 more")
    assert all(map(equal_on_all_ranks, params))


def test_of_many_parameters_that_differ_the_first_are_named() -> None:
    run_ranks(of_many, 3)


def alike(rank: int, world_size: int) -> None:
    params = parameters()
    with torch.no_grad():
        params[0][1][2, 3] = torch.nan  # whose bytes are equal
    optimizer = made("Lion", params)
    hashed: list[str] = []
    original = replicas._hash
    replicas._hash = lambda tensor, name: hashed.append(name) or original(tensor, name)  # type: ignore[func-returns-value]
    for number in range(3):
        hashed.clear()
        before = calls_of_agreement(optimizer)
        assert said_by(lambda number=number: step(optimizer, rank, number)) == []
        assert calls_of_agreement(optimizer) == before + 1
        assert len(hashed) == (0 if number else len(SIZES))
    optimizer.synchronize_for_checkpoint()
    optimizer.load_state_dict(optimizer.state_dict())
    assert said_by(lambda: step(optimizer, rank)) == []
    assert len(hashed) == 2 * len(SIZES)  # with each momentum


def test_equal_starts_are_hashed_at_the_first_step_alone_and_cost_no_message() -> None:
    run_ranks(alike, 2)


def owned(rank: int, world_size: int) -> None:
    optimizer = made("DistAdamW", parameters())
    for number in range(2):
        step(optimizer, rank, number)
    optimizer.load_state_dict(optimizer.state_dict())
    assert said_by(lambda: step(optimizer, rank, 2)) == []


def test_states_that_have_owners_are_nothing_to_compare() -> None:
    run_ranks(owned, 2)


def through_copies(rank: int, world_size: int) -> None:
    """Weights that a step does not write where they lie: what was planned for others is planned again."""

    def start(difference: int) -> list[Parameter]:
        strided = torch.arange(288.0).sin().view(12, 24)[:, ::2] + difference
        wrapped = torch.arange(96.0).cos().view(12, 8) + difference
        return [Parameter(torch.stack([strided, strided], -1)[..., 0]), Parameter(Copying(wrapped))]

    expected, params = start(0), start(rank)
    assert 1 not in params[0].stride()
    numbers = []
    for each in (expected, params):
        optimizer = made("Dion", each, rank_fraction=0.25)
        for number in range(2):
            said_by(lambda number=number, optimizer=optimizer: step(optimizer, rank, number))
        numbers.append([each[0].detach(), each[1].inner])
    assert all(map(torch.equal, *numbers))


def test_weights_that_are_written_through_copies_start_alike_too() -> None:
    run_ranks(through_copies, 2)


def in_pieces(rank: int, world_size: int) -> None:
    """One replica differs in the piece of one rank: all ranks are told, and the other pieces are as they were."""
    mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "fs"))
    torch.manual_seed(0)
    layers = Sequential(Linear(10, 7), Linear(7, 9), Linear(9, 2))
    fully_shard(layers, mesh=mesh["fs"])
    optimizer = made("Dion", layers.named_parameters(), rank_fraction=0.1, replicate_mesh=mesh["dp"])
    if rank == 4:
        flip_a_bit(local_part(params_of(optimizer)[2]))
    give_other_gradients(optimizer, rank)
    assert said_by(optimizer.step) == [sentence("torchdion.Dion", "parameter '1.weight' (parameter group 0)")]
    optimizer.check_replicas()
    give_other_gradients(optimizer, rank)
    before = calls_of_agreement(optimizer)
    assert said_by(optimizer.step) == []
    assert calls_of_agreement(optimizer) == before + 2


def test_a_piece_that_differs_is_told_to_the_ranks_of_all_pieces() -> None:
    run_ranks(in_pieces, 6)


def without_gradients(rank: int, world_size: int) -> None:
    params = parameters()
    params[1][1].requires_grad_(False)
    optimizer = made("Dion", params, rank_fraction=0.25)
    give_other_gradients(optimizer, rank)
    params[1][1].grad = None
    if rank == 1:
        params[0][1].grad = None  # counts as zero there
    params[2][1].grad = None  # nowhere
    if rank == 1:
        for _, param in params:
            flip_a_bit(param)
    untouched = params[2][1].detach().clone()
    [said] = said_by(optimizer.step)
    assert said == sentence("torchdion.Dion", ", ".join(f"parameter '{name}' (parameter group 0)" for name in SIZES))
    assert all(equal_on_all_ranks(param) for _, param in params)
    assert torch.equal(params[2][1], untouched) == (rank == 0)
    assert params[2][1] not in optimizer.state
    optimizer.check_replicas()


def test_parameters_that_are_frozen_or_have_no_gradient_start_alike_too() -> None:
    run_ranks(without_gradients, 2)


def loaded(rank: int, world_size: int) -> None:
    optimizer = made("Lion", parameters())
    for number in range(2):
        step(optimizer, rank, number)
    state = optimizer.state_dict()
    if rank == 1:
        state["state"][0]["momentum"] = state["state"][0]["momentum"] * 2
    optimizer.load_state_dict(state)
    if rank == 1:
        flip_a_bit(params_of(optimizer)[2])
    [said] = said_by(lambda: step(optimizer, rank, 2))
    names = "parameter 'tall' (parameter group 0), parameter 'vector' (parameter group 0)"
    assert said == sentence("torchdion.Lion", names)
    optimizer.check_replicas()


def test_weights_and_states_after_loading_are_compared_again() -> None:
    run_ranks(loaded, 2)


def loaded_on_one(rank: int, world_size: int, differs: bool) -> None:
    optimizer = made("Lion", parameters())
    step(optimizer, rank)
    optimizer.synchronize_for_checkpoint()
    if rank == 1:
        state = optimizer.state_dict()
        if differs:
            state["state"][1]["momentum"] = -state["state"][1]["momentum"]
        optimizer.load_state_dict(state)
    said = [sentence("torchdion.Lion", "parameter 'square' (parameter group 0)")] if differs else []
    assert said_by(lambda: step(optimizer, rank, 1)) == said
    optimizer.check_replicas()


@pytest.mark.parametrize("differs", [False, True])
def test_what_one_rank_alone_has_loaded_all_compare(differs: bool) -> None:
    run_ranks(loaded_on_one, 2, differs)


def added(rank: int, world_size: int) -> None:
    optimizer = made("Muon", parameters())
    step(optimizer, rank)
    optimizer.add_param_group({"params": [("more", Parameter(torch.full((6, 4), 1.0 + rank)))]})
    said = said_by(lambda: step(optimizer, rank, 1))
    assert said == [sentence("torchdion.Muon", "parameter 'more' (parameter group 1)")]
    optimizer.check_replicas()


def test_a_group_that_is_added_is_compared_too() -> None:
    run_ranks(added, 2)


def appended(rank: int, world_size: int, name: str, options: dict[str, Any]) -> None:
    """As loops do that grow a model: the list of the group is theirs too."""
    optimizer = made(name, parameters(), **options)
    step(optimizer, rank)
    for value in (1.0, 2.0):
        optimizer.param_groups[0]["params"].append(Parameter(torch.full((6, 4), value + rank)))
        said = said_by(lambda: step(optimizer, rank, 1))
        assert said == [sentence(f"torchdion.{name}", f"parameter {len(params_of(optimizer)) - 1} (parameter group 0)")]
    assert all(map(equal_on_all_ranks, params_of(optimizer)))
    before = calls_of_agreement(optimizer)
    assert said_by(lambda: step(optimizer, rank, 2)) == []
    assert calls_of_agreement(optimizer) == before + (0 if options.get("capturable") else 1)


APPENDED: list[tuple[str, dict[str, Any]]] = [
    ("Muon", {}),
    ("DoubleDion", {"delayed": True}),
    ("AdamW", {"capturable": True}),
]


@pytest.mark.parametrize(("name", "options"), APPENDED, ids=[" ".join((name, *given)) for name, given in APPENDED])
def test_a_parameter_that_is_appended_to_a_group_is_compared_too(name: str, options: dict[str, Any]) -> None:
    run_ranks(appended, 2, name, options)


def replaced(rank: int, world_size: int) -> None:
    optimizer = made("Muon", parameters())
    step(optimizer, rank)
    optimizer.param_groups[0]["params"][0] = Parameter(torch.full((6, 4), 1.0 + rank))
    assert said_by(lambda: step(optimizer, rank, 1)) == [
        sentence("torchdion.Muon", "parameter 'tall' (parameter group 0)")
    ]


def test_a_parameter_that_takes_the_place_of_another_is_compared_too() -> None:
    run_ranks(replaced, 2)


def materialized(rank: int, world_size: int) -> None:
    layer = LazyLinear(4, bias=False)
    optimizer = made("Muon", [*parameters(), ("lazy", layer.weight)])
    for param in params_of(optimizer)[:-1]:
        param.grad = torch.ones_like(param)
    optimizer.step()
    torch.manual_seed(rank)
    layer(torch.ones(2, 6))
    assert said_by(lambda: step(optimizer, rank, 1)) == [
        sentence("torchdion.Muon", "parameter 'lazy' (parameter group 0)")
    ]


def test_a_parameter_that_had_no_shape_yet_is_compared_once_it_has_one() -> None:
    run_ranks(materialized, 2)


def refused_by_a_filter(rank: int, world_size: int) -> None:
    optimizer = made("Muon", parameters())
    step(optimizer, rank)
    group = {"params": [("more", Parameter(torch.full((6, 4), 1.0 + rank)))], "weight_deca": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="unknown option 'weight_deca'"):
            optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1
    assert group.keys() == {"params", "weight_deca"}
    said = said_by(lambda: optimizer.add_param_group(group)) + said_by(lambda: step(optimizer, rank, 1))
    assert [text.partition(" (")[0] for text in said] == [
        "torchdion.Muon: unknown option 'weight_deca'",
        "torchdion.Muon: replicas must start alike, and differ in parameter 'more'",
    ]


def test_a_group_whose_warning_is_an_error_is_not_added_and_can_be_added_later() -> None:
    run_ranks(refused_by_a_filter, 2)


def made_equal_before(rank: int, world_size: int) -> None:
    optimizer = made("Dion", [Parameter(torch.full((6, 4), 1.0 + rank))])
    with pytest.raises(RuntimeError, match=r"replicas differ in parameter 0 .*; synchronize_replicas\(\) makes them"):
        optimizer.check_replicas()
    optimizer.synchronize_replicas()
    assert said_by(lambda: step(optimizer, rank)) == []
    assert equal_on_all_ranks(params_of(optimizer)[0])


def test_replicas_that_were_made_equal_before_the_first_step_have_nothing_to_say() -> None:
    run_ranks(made_equal_before, 2)


def as_errors(rank: int, world_size: int) -> None:
    optimizer = made("Dion", [Parameter(torch.full((6, 4), 1.0 + rank)), Parameter(torch.ones(3))])
    before = [param.detach().clone() for param in params_of(optimizer)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):  # it does not go away
            with pytest.raises(UserWarning, match=r"replicas must start alike, and differ in parameter 0"):
                step(optimizer, rank)
        assert all(map(torch.equal, params_of(optimizer), before))
        assert not optimizer.state
        optimizer.synchronize_replicas()
        step(optimizer, rank)


def test_a_warning_that_is_an_error_is_one_on_all_ranks_and_nothing_was_written() -> None:
    run_ranks(as_errors, 2)


def of_others(rank: int, world_size: int) -> None:
    """Whoever averages gradients before the step has made weights equal, or has not."""
    mesh = init_device_mesh("cpu", (2,))
    of_mesh = Parameter(distribute_tensor(torch.ones(6, 4), mesh, [Replicate()]))
    for optimizer in (copied(), torchdion.Muon([of_mesh], lr=0.1)):
        local_part(params_of(optimizer)[0]).detach().add_(rank)
        for param in params_of(optimizer):
            param.grad = torch.ones_like(param)
        assert said_by(optimizer.step) == []
        assert not equal_on_all_ranks(local_part(params_of(optimizer)[0]))


def test_copies_that_the_optimizer_does_not_average_are_not_compared() -> None:
    run_ranks(of_others, 2)


def not_writable(rank: int, world_size: int) -> None:
    optimizer = replicated()
    give_other_gradients(optimizer, rank)
    frozen = params_of(optimizer)[1]
    frozen.grad = None
    if rank == 1:
        optimizer.param_groups[0]["params"][1] = Parameter(Refusing(frozen.detach()))
    before = [param.detach().clone() for param in params_of(optimizer) if type(param) is Parameter]
    own = "parameter 1 .* must have memory" if rank == 1 else r"another rank refused synchronize_replicas\(\), and its"
    with pytest.raises((ValueError, RuntimeError), match=f"^torchdion.Dion: {own}"):
        said_by(optimizer.step)
    after = [param for param in params_of(optimizer) if type(param) is Parameter]
    assert all(map(torch.equal, after, before))
    assert not optimizer.state


def test_a_copy_that_one_rank_cannot_write_is_an_error_on_all() -> None:
    run_ranks(not_writable, 2, time_limit=30)


def not_readable(rank: int, world_size: int) -> None:
    optimizer = replicated()
    give_other_gradients(optimizer, rank)
    params_of(optimizer)[1].grad = None
    optimizer.param_groups[0]["params"][1] = Parameter(Refusing(params_of(optimizer)[1].detach()))
    assert said_by(optimizer.step) == []


def test_what_no_rank_can_read_is_left_alone() -> None:
    run_ranks(not_readable, 2, time_limit=30)


DTYPES = [torch.bool, torch.int16, torch.complex64, torch.float8_e4m3fn, torch.bfloat16, torch.float64]


def of_dtypes(rank: int, world_size: int) -> None:
    axis = torchdion._C.Axis(dist.group.WORLD, name="copies")
    for dtype in DTYPES:
        for shape in ((), (3, 5)):
            tensor = torch.full(shape, rank == 0, dtype=torch.float32).to(dtype)
            tensor = tensor.t() if tensor.dim() else tensor
            assert torchdion._C.differing([tensor], axis) == [True]
            torchdion._C.copy_from_first(tensor, axis)
            assert torchdion._C.differing([tensor], axis) == [False]
            assert bool((tensor.float() == 1).all()), dtype


def test_copies_of_any_dtype_are_compared_and_made_equal() -> None:
    run_ranks(of_dtypes, 2)


def test_a_hash_is_that_of_the_bytes_however_they_lie_and_whatever_their_number() -> None:
    """Beyond 16 MiB a tensor is copied in parts, also where one row has more."""
    for shape in ((3000, 3001), (2, 5_000_001), (1, 2, 2_500_000)):
        tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
        strided = tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
        assert not strided.is_contiguous()
        digest = torchdion._C.digest_of(tensor)
        assert torchdion._C.digest_of(strided) == digest
        for index in (0, tensor.numel() // 2, tensor.numel() - 1):
            flip_a_bit(tensor.view(-1)[: index + 1])
            assert torchdion._C.digest_of(tensor) != digest
            flip_a_bit(tensor.view(-1)[: index + 1])
        assert torchdion._C.digest_of(tensor) == digest
