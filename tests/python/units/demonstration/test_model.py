"""The model is a GPT: no token is seen before its turn, and its matrices are known for what they are."""

import torch

import torchdion
from torchdion.demonstration.model import GPT


def test_a_later_token_changes_no_earlier_logits() -> None:
    model = GPT(vocabulary=11, context=8, width=16, layers=2, heads=2)
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5] = 10
    difference = (model(tokens) - model(changed)).abs().amax(dim=(0, 2))
    assert difference[:5].max() < 1e-6
    assert difference[5:].min() > 1e-4


def test_its_parameters_are_routed_as_the_papers() -> None:
    model = GPT(vocabulary=11, context=8, width=16, layers=2, heads=2)
    names: dict[str, set[str]] = {}
    for group in torchdion.param_groups(model):
        names.setdefault(group["kind"], set()).update(name for name, _ in group["params"])
    assert names["embedding"] == {"tokens.weight", "positions.weight"}
    assert names["head"] == {"head.weight"}
    assert all("bias" in name or "norm" in name for name in names["vector"])
    assert len(names["matrix"]) == 2 * 4
