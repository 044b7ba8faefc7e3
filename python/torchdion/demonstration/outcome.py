"""Which of two trainings was ahead, in one sentence."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """Validation losses of a training by step.

    Args:
        title: what its optimizer is called.
        losses: by the number of steps made, of which the largest is the whole training's.
    """

    title: str
    losses: Mapping[int, float]

    @property
    def steps(self) -> int:
        return max(self.losses)

    @property
    def final(self) -> float:
        return self.losses[self.steps]

    def reached(self, loss: float) -> int:
        """The first validated step whose loss is no larger, which the final one is not."""
        return min(step for step, found in self.losses.items() if found <= loss)


def comparison(ours: Curve, baseline: Curve, unit: str) -> str:
    """What ``ours`` achieved against ``baseline`` at as many steps.

    The step by which one had the other's final loss is that of a validation: it can be late, by less than two
    validations are apart, but not early. Final losses that agree to three digits after the point are equal.

    Args:
        unit: of the losses, such as "nats per byte".

    Example:
        >>> comparison(Curve("Dion", {50: 1.6, 100: 1.4}), Curve("AdamW", {50: 1.9, 100: 1.7}), "nats per byte")
        'Dion reached the final loss of AdamW (1.700 nats per byte after 100 steps) by step 50, and ended at 1.400.'
    """
    mine, other = f"{ours.final:.3f}", f"{baseline.final:.3f}"
    after = f"{unit} after {ours.steps} steps"
    if mine == other:
        return f"{ours.title} and {baseline.title} ended at the same loss, {mine} {after}."
    if ours.final < baseline.final:
        return (
            f"{ours.title} reached the final loss of {baseline.title} ({other} {after}) by step "
            f"{ours.reached(baseline.final)}, and ended at {mine}."
        )
    return (
        f"{ours.title} ended at {mine} {after}, above the {other} of {baseline.title}, which reached "
        f"{mine} by step {baseline.reached(ours.final)}."
    )
