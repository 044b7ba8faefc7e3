"""Guesses from shapes alone, in an optimizer that was given no groups."""

import re
import warnings

import pytest
import torch
from torch import nn

import torchdion


def said_of(*shapes: tuple[int, ...], **group: object) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torchdion.Dion([{"params": [nn.Parameter(torch.ones(shape)) for shape in shapes], **group}])
    return [str(warning.message) for warning in seen]


@pytest.mark.parametrize(
    ("shape", "batch_dims"),
    [
        ((3, 6, 4), 1),
        ((1, 8, 16, 16), 2),
        ((2, 3, 8, 6), 2),
        ((1, 16, 12, 3, 3), 3),
        ((1, 4, 6, 6, 6), 3),
        ((2, 2, 2, 5, 6), 3),
    ],
)
def test_a_parameter_that_may_be_a_stack_or_has_one_row_is_spoken_of(shape, batch_dims):
    [sentence] = said_of(shape)
    size = torch.Size(shape)
    assert sentence == (
        f"torchdion.Dion: parameter 0 (parameter group 0) has shape {shape} and is taken for a convolution, one matrix "
        f"of {size[0]}×{size[1:].numel()}; set batch_dims={batch_dims} in its group if it is a stack of matrices, "
        "batch_dims=0 if not"
    )
    assert said_of(shape, batch_dims=batch_dims) == said_of(shape, batch_dims=0) == []


KERNELS = [
    *(nn.Conv2d(3, 8, 3), nn.Conv2d(3, 64, 16), nn.Conv2d(16, 1, 3), nn.Conv2d(8, 8, 5, groups=8), nn.Conv2d(8, 16, 1)),
    *(nn.Conv2d(16, 32, (1, 7)), nn.Conv3d(3, 8, 3), nn.Conv3d(3, 64, (2, 4, 4)), nn.Conv2d(3, 32, 4, stride=2)),
]


@pytest.mark.parametrize("layer", KERNELS, ids=str)
def test_kernels_of_convolutions_are_not_spoken_of(layer):
    assert said_of(tuple(layer.weight.shape)) == []


def test_the_sentence_of_param_groups_is_one_and_the_optimizer_adds_none():
    model = nn.Module()
    for index, shape in enumerate([(1, 8, 16, 16), (2, 3, 8, 6), (1, 16, 12, 3, 3), (3, 6, 4)]):
        model.register_parameter(f"odd{index}", nn.Parameter(torch.ones(shape)))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torchdion.Dion(torchdion.param_groups(model))
    assert len(seen) == 1
    assert all(re.search(rf"'odd{index}'", str(seen[0].message)) for index in range(4))
