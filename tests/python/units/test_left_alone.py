"""What a step leaves alone stays to the last bit under every algorithm: a step that is left out, a matrix without a
gradient; and what is not a number does not stay hidden."""

from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter

import torchdion
from torchdion.dtensor import local_part
from torchdion.table import ALGORITHMS

FORMS: dict[str, dict[str, Any]] = {name: {"algorithm": name} for name in ALGORITHMS} | {
    "demo in chunks": {"algorithm": "demo", "chunk_size": 6, "top_k": 3},
    "demo, cut within chunks": {"algorithm": "demo", "chunk_size": 5, "top_k": 3},
    "double_dion of larger rank": {"algorithm": "double_dion", "replicate_rank_fraction": 0.3},
    "singular vectors": {"factorization": "svd"},
    "no error feedback": {"error_feedback": False},
    "nesterov": {"nesterov": True},
    "cautious dion": {"cautious_wd": True},
    "cautious muon": {"algorithm": "muon", "cautious_wd": True},
    "cautious lion": {"algorithm": "lion", "cautious_wd": True},
}
OF_MATRICES = {name: form for name, form in FORMS.items() if ALGORITHMS[form.get("algorithm", "dion")].takes_matrices}


def normal(seed: int) -> Tensor:
    return torch.randn(12, 9, generator=torch.Generator().manual_seed(seed))


def optimizer_of(params: list[Parameter], form: dict[str, Any], **options: Any) -> torchdion.Dion:
    return torchdion.Dion([{"params": params, **form}], weight_decay=0.5, rank_fraction=0.5, **options)


def take_step(optimizer: torchdion.Dion, params: list[Parameter], gradients: list[Tensor]) -> None:
    for param, G in zip(params, gradients, strict=True):
        param.grad = G
    optimizer.step()


def held(optimizer: torchdion.Dion, param: Parameter) -> list[Tensor]:
    """The weight and its states."""
    states = [state for name, state in sorted(optimizer.state[param].items()) if name != "step"]
    return [local_part(tensor).detach().clone() for tensor in (param, *states)]


def are_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")
@pytest.mark.parametrize(
    ("form", "capturable"),
    [
        pytest.param(form, capturable, id=f"{name}{', on the device' if capturable else ''}")
        for name, form in FORMS.items()
        for capturable in (False, True)
        if not (capturable and "factorization" in form)  # whose host waits
    ],
)
def test_a_step_that_is_left_out_changes_no_bit(form: dict[str, Any], capturable: bool) -> None:
    params = [Parameter(normal(0)), Parameter(normal(1))]
    optimizer = optimizer_of(params, form, nonfinite="skip_step", capturable=capturable)
    take_step(optimizer, params, [normal(2), normal(3)])
    before = [held(optimizer, param) for param in params]
    bad = normal(4)
    bad[3, 2] = torch.nan
    take_step(optimizer, params, [bad, normal(5)])
    assert all(are_equal(held(optimizer, param), kept) for param, kept in zip(params, before, strict=True))
    take_step(optimizer, params, [normal(6), normal(7)])
    assert not any(are_equal(held(optimizer, param), kept) for param, kept in zip(params, before, strict=True))


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_nan_in_a_gradient_reaches_its_weight_and_no_other(form: dict[str, Any]) -> None:
    params = [Parameter(normal(0)), Parameter(normal(1))]
    optimizer = optimizer_of(params, form)
    bad = normal(2)
    bad[3, 2] = torch.nan
    take_step(optimizer, params, [bad, normal(3)])
    assert params[0].isnan().any()
    assert params[1].isfinite().all()


def skipped(rank: int, world_size: int, forms: list[dict[str, Any]]) -> list[tuple[bool, bool]]:
    """Of each form, whether the matrix without a gradient stayed, and whether the other one did."""
    mesh = init_device_mesh("cpu", (world_size,)) if world_size > 1 else None

    def piece(whole: Tensor) -> Tensor:
        return whole if mesh is None else distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)

    found = []
    for form in forms:
        params = [Parameter(piece(normal(0))), Parameter(piece(normal(1)))]
        optimizer = optimizer_of(params, {"skip_zero_gradients": True, **form})
        take_step(optimizer, params, [piece(normal(2)), piece(normal(3))])
        before = [held(optimizer, param) for param in params]
        take_step(optimizer, params, [piece(torch.zeros(12, 9)), piece(normal(4))])
        stayed = [are_equal(held(optimizer, param), kept) for param, kept in zip(params, before, strict=True)]
        found.append((stayed[0], stayed[1]))
    return found


@pytest.mark.filterwarnings("ignore:.*is one of:UserWarning")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_matrix_without_a_gradient_changes_no_bit_whole_or_cut(ranks: int) -> None:
    runs = (
        run_ranks(skipped, ranks, list(OF_MATRICES.values())) if ranks > 1 else [skipped(0, 1, [*OF_MATRICES.values()])]
    )
    for run in runs:
        assert dict(zip(OF_MATRICES, run, strict=True)) == dict.fromkeys(OF_MATRICES, (True, False))
