"""The sentence says which training was ahead, and from when on."""

import pytest

from torchdion.demonstration.outcome import Curve, comparison

SLOW = {10: 3.0, 20: 2.5, 30: 2.0}


@pytest.mark.parametrize(
    ("ours", "baseline", "sentence"),
    [
        ({10: 2.9, 20: 2.0, 30: 1.5}, SLOW,
         "A reached the final loss of B (2.000 nats per byte after 30 steps) by step 20, and ended at 1.500."),
        ({10: 2.9, 20: 2.001, 30: 1.99}, SLOW,
         "A reached the final loss of B (2.000 nats per byte after 30 steps) by step 30, and ended at 1.990."),
        ({10: 1.9, 20: 2.1, 30: 1.9}, SLOW,
         "A reached the final loss of B (2.000 nats per byte after 30 steps) by step 10, and ended at 1.900."),
        ({10: 3.0, 20: 2.9, 30: 2.6}, SLOW,
         "A ended at 2.600 nats per byte after 30 steps, above the 2.000 of B, which reached 2.600 by step 20."),
        ({10: 1.0, 20: 2.9, 30: 3.5}, SLOW,
         "A ended at 3.500 nats per byte after 30 steps, above the 2.000 of B, which reached 3.500 by step 10."),
        ({30: 2.0004}, SLOW, "A and B ended at the same loss, 2.000 nats per byte after 30 steps."),
    ],
    ids=["reached", "at the end", "and lost again", "never", "far from it", "equal"],
)  # fmt: skip
def test_a_comparison_is_one_true_sentence(ours: dict[int, float], baseline: dict[int, float], sentence: str) -> None:
    assert comparison(Curve("A", ours), Curve("B", baseline), "nats per byte") == sentence
