"""Parameters that a distributed wrapper has flattened or partitioned are refused by name, not updated as vectors."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn import Parameter
from torch.testing._internal.distributed.fake_pg import FakeStore

import torchdion


@pytest.fixture(params=["gloo, one rank", "fake, two ranks"])
def world(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "gloo, one rank":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use_orig_params", [False, True])
def test_parameters_of_FSDP1_are_refused_by_name(world, use_orig_params):
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=use_orig_params)
    name = "0.weight" if use_orig_params else "_flat_param"
    sentence = rf"^torchdion.Dion: parameter '_fsdp_wrapped_module.{name}' .* is FSDP1's FlatParameter .* fully_shard"
    with pytest.raises(ValueError, match=sentence):
        torchdion.Dion(wrapped.named_parameters())
    with pytest.raises(ValueError, match="is FSDP1's FlatParameter"):
        torchdion.Dion(torchdion.param_groups(wrapped))
    with pytest.raises(ValueError, match="is FSDP1's FlatParameter"):
        torchdion.Dion([Parameter(torch.zeros(2, 2))]).add_param_group({"params": wrapped.parameters()})


def test_a_class_called_FlatParameter_is_refused():
    class FlatParameter(Parameter):
        pass

    with pytest.raises(ValueError, match=r"FSDP1's FlatParameter.* use fully_shard"):
        torchdion.Dion([FlatParameter(torch.zeros(8))])


@pytest.mark.parametrize("shape", [(6, 4), (0,)])  # ZeRO-3 leaves an empty vector where the parameter was
def test_a_parameter_that_DeepSpeed_has_partitioned_is_refused_by_name(shape):
    partitioned = Parameter(torch.zeros(shape))
    partitioned.ds_id = 3
    with pytest.raises(ValueError, match=r"^torchdion.Dion: parameter 'weight' .* is partitioned by DeepSpeed"):
        torchdion.Dion([("weight", partitioned)])
