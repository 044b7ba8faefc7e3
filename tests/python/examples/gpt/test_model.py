"""examples/gpt/model.py: the architecture's properties, and the presets' sizes."""

import math

import pytest
import torch
from model import GPT, Shape, rotary_table, rotate
from options import Recipe, parse, recipe
from presets import PRESETS
from torch import Tensor
from torch.nn import functional as F

CPU = torch.device("cpu")
SMALL = Shape(vocab=50, layers=2, d_model=24, heads=2)


def random_model(shape: Shape) -> GPT:
    """Every weight random: the zero ones of the true start would hide what reaches the logits."""
    model = GPT(shape)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * weight.size(1) ** -0.5)
    return model


def preset(name: str) -> Recipe:
    return recipe(parse(["--preset", name, "--data", "shards/*.bin", "--optimizer", "torch_adamw"]), CPU)


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(SMALL.vocab, shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("changed", [0, 5, 9])
def test_a_changed_token_changes_no_earlier_logit_and_every_later_one(changed: int) -> None:
    model = random_model(SMALL)
    tokens = random_tokens(1, 10)
    other = tokens.clone()
    other[0, changed] = (other[0, changed] + 1) % SMALL.vocab
    distance = (model(tokens) - model(other)).abs().amax(dim=-1)[0]
    assert distance[:changed].max().item() < 1e-6 if changed else True
    assert distance[changed:].min().item() > 1e-4


def test_rotary_products_depend_on_the_distance_alone_and_do_depend_on_it() -> None:
    d_head, length = 16, 12
    generator = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, d_head, generator=generator)
    cos, sin = rotary_table(length, d_head, CPU)
    at_every_position = torch.ones(length, 1)
    products = rotate(at_every_position * q, cos, sin) @ rotate(at_every_position * k, cos, sin).T
    for distance in range(-length + 1, length):
        diagonal = torch.diagonal(products, distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    assert products[0].std().item() > 0.1


def test_rotation_keeps_lengths() -> None:
    x = torch.randn(1, 1, 8, 16, generator=torch.Generator().manual_seed(4))
    turned = rotate(x, *rotary_table(8, 16, CPU))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert (turned - x)[0, 0, 1:].norm().item() > 0.1


def test_the_order_of_earlier_tokens_reaches_the_last_logits() -> None:
    model = random_model(Shape(vocab=50, layers=1, d_model=24, heads=2))
    tokens = torch.tensor([[1, 2, 3, 4]])
    swapped = torch.tensor([[2, 1, 3, 4]])
    # With one layer, only the positions tell the two apart.
    assert (model(tokens) - model(swapped))[0, -1].abs().max().item() > 1e-3


def test_the_mlp_is_squared_relu() -> None:
    mlp = random_model(SMALL).blocks[0].mlp
    x = torch.randn(1, 3, SMALL.d_model, generator=torch.Generator().manual_seed(5))
    hidden = x @ mlp.up.weight.T
    torch.testing.assert_close(mlp(x), (hidden * (hidden > 0)) ** 2 @ mlp.down.weight.T)


def test_a_block_adds_the_same_to_a_stream_of_any_scale() -> None:
    block = random_model(SMALL).blocks[0].double()
    x = torch.randn(1, 3, SMALL.d_model, generator=torch.Generator().manual_seed(5)).double()
    cos, sin = rotary_table(3, SMALL.d_model // SMALL.heads, CPU)
    added = [block(x * scale, cos, sin) - x * scale for scale in (1e6, 2e6)]
    assert added[0].abs().max().item() > 0.1
    torch.testing.assert_close(added[0], added[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name, millions", [("120m", 162), ("350m", 405), ("1.3b", 1414), ("3b", 3027)])
def test_presets_have_the_papers_parameters(name: str, millions: int) -> None:
    run = preset(name)
    with torch.device("meta"):
        model = GPT(run.shape)
    counts = {key: weight.numel() for key, weight in model.named_parameters()}
    blocks = sum(count for key, count in counts.items() if key.startswith("blocks."))
    assert blocks == 12 * run.layers * run.d_model**2
    assert counts["embedding.weight"] == counts["head.weight"] == 50304 * run.d_model
    assert round(sum(counts.values()) / 1e6) == millions
    assert not any(key.endswith("bias") for key in counts)
    assert all(weight.dim() == 2 for weight in model.parameters())


@pytest.mark.parametrize(
    "name, shape, batch_tokens, steps",
    [
        ("120m", (768, 12, 6), 2**20, 3000),
        ("350m", (1024, 24, 32), 2**21, 4000),
        ("1.3b", (2048, 24, 32), 2**22, 6000),
        ("3b", (3072, 24, 32), 2**23, 30000),
    ],
)
def test_presets_are_the_papers(name: str, shape: tuple[int, ...], batch_tokens: int, steps: int) -> None:
    run = preset(name)
    assert (run.d_model, run.layers, run.heads) == shape
    assert run.context == 1024
    assert run.batch * run.context == batch_tokens
    assert run.steps == steps


def test_every_preset_makes_a_valid_run() -> None:
    for name in PRESETS:
        assert preset(name).vocab == 50304


@pytest.mark.parametrize("d_model", [32, 1024])
def test_initial_loss_is_nearly_that_of_a_uniform_guess(d_model: int) -> None:
    model = GPT(Shape(vocab=256, layers=2, d_model=d_model, heads=2))
    model.initialize(torch.Generator().manual_seed(0))
    tokens = random_tokens(8, 65)
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    # Logits of standard deviation 0.25 cost 0.25² / 2 on average.
    assert loss.item() - math.log(256) == pytest.approx(0.03, abs=0.03)


def test_blocks_start_as_the_identity() -> None:
    model = GPT(SMALL)
    model.initialize(torch.Generator().manual_seed(0))
    x = torch.randn(1, 3, SMALL.d_model, generator=torch.Generator().manual_seed(5))
    assert torch.equal(model.blocks[0](x, *rotary_table(3, SMALL.d_model // SMALL.heads, CPU)), x)


def test_initial_weights_follow_the_seed_and_have_their_scale() -> None:
    def weights(seed: int) -> dict[str, Tensor]:
        model = GPT(Shape(vocab=64, layers=1, d_model=64, heads=2))
        model.initialize(torch.Generator().manual_seed(seed))
        return dict(model.named_parameters())

    first, again, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])
    query = first["blocks.0.attention.query.weight"]
    assert query.std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert first["blocks.0.mlp.down.weight"].count_nonzero() == 0
