"""What is compared, each a row: what, measured, allowed, and whether that passes."""

from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from torchdion.planning.plan import plan
from torchdion.routing import param_groups
from torchdion.table import ALGORITHMS
from torchdion.verification.network import CUTS, Network, Sizes
from torchdion.verification.observed import Observed
from torchdion.verification.run import State, Training

ALLOWED = 1e-10
"""Relative error in FP64 of weights and states: what tests/python/law/test_law.py allows after 20 steps."""


@dataclass(frozen=True)
class Row:
    what: str
    measured: str
    allowed: str
    passes: bool

    @property
    def cells(self) -> tuple[str, str, str, str]:
        return self.what, self.measured, self.allowed, "pass" if self.passes else "FAIL"


def check(training: Training, observed: list[Observed], alone: State, published: dict[str, Tensor] | None) -> list[Row]:
    """All ranks, in their order, against one process; and the weights of that against those by the papers, if any."""
    against_papers = []
    if published is not None:
        what, expected = "one process against the papers' algorithms", replace(alone, weights=published)
        against_papers.append(check_weights(what, expected, [alone.weights]))
    return [
        *against_papers,
        check_weights("weights against one process", alone, [rank.state.weights for rank in observed]),
        *(_states(state, training, observed, alone) for state in alone.states),
        _copies(observed, training.sizes),
        _replicas(observed),
        _order(observed, training),
        _traffic(observed, training),
    ]


def check_weights(what: str, expected: State, of_ranks: list[dict[str, Tensor]]) -> Row:
    """‖X − X'‖ / ‖X' − X₀‖ of the weights X of each rank: relative to the way that they should have gone."""
    errors = {
        (name, rank): distance(weights[name], end, end - expected.start[name])
        for rank, weights in enumerate(of_ranks)
        for name, end in expected.weights.items()
    }
    return _largest(what, errors)


def _states(key: str, training: Training, observed: list[Observed], alone: State) -> Row:
    errors = {
        (name, rank.rank): distance(rank.state.states[key][name], end, end)
        for rank in observed
        for name, end in alone.states[key].items()
    }
    momenta = "momenta (mean over dp)" if training.averages and not training.has_owners else "momenta"
    what = momenta if key == "momentum" else key
    return _largest(f"{what} against one process", errors)


def distance(tensor: Tensor, expected: Tensor, scale: Tensor) -> float:
    """Infinite where the shapes differ, NaN where nothing has moved: neither passes."""
    if tensor.shape != expected.shape:
        return float("inf")
    return float(torch.linalg.vector_norm(tensor - expected) / torch.linalg.vector_norm(scale))


def _largest(what: str, errors: dict[tuple[str, int], float]) -> Row:
    passes = bool(errors) and all(error <= ALLOWED for error in errors.values())
    if not errors:
        return Row(what, "nothing", f"{ALLOWED:g}", False)
    (name, rank), error = max(errors.items(), key=lambda item: (item[1] != item[1], item[1]))  # NaN is the largest
    measured = f"{error:.1e}" if passes else f"{error:.1e} ({name} on rank {rank})"
    return Row(what, measured, f"{ALLOWED:g}", passes)


def _copies(observed: list[Observed], sizes: Sizes) -> Row:
    """Ranks at one coordinate of the dimensions that cut a tensor hold the same bytes."""
    contents: dict[tuple[object, ...], set[str]] = {}
    for rank in observed:
        coordinate = sizes.coordinate(rank.rank)
        for name, digest in rank.digests.items():
            apart = {*digest.cut_by, *(("dp",) if digest.differs_over_dp else ())}
            key = (name, *((dim, coordinate[dim]) for dim in sorted(apart)))
            contents.setdefault(key, set()).add(digest.content)
    different = sorted({str(key[0]) for key, digests in contents.items() if len(digests) > 1})
    return Row("copies that differ in any bit", _number(different), f"0 of {len(contents)}", not different)


def _replicas(observed: list[Observed]) -> Row:
    refusing = [rank for rank in observed if rank.replicas]
    measured = f"{len(refusing)}: {refusing[0].replicas}" if refusing else "0"
    return Row("ranks where check_replicas() raises", measured, "0", not refusing)


def _order(observed: list[Observed], training: Training) -> Row:
    """Ranks on one line along an axis issue the same collectives; one on which any rank issued nothing is a miss."""
    lines: dict[tuple[object, ...], list[list[tuple[str, int]]]] = {}
    for rank in observed:
        coordinate = training.sizes.coordinate(rank.rank)
        for axis, issued in rank.issued.items():
            others = tuple(index for dim, index in coordinate.items() if dim not in axis.split("_"))
            lines.setdefault((axis, *others), []).append(issued)
    different = {str(key[0]) for key, issued in lines.items() if any(other != issued[0] for other in issued)}
    axes = {axis for rank in observed for axis in rank.issued}
    partial = {axis for axis in axes if any(axis not in rank.issued for rank in observed)}
    silent = _dimensions_in_use(training) - {dim for axis in axes for dim in axis.split("_")}
    number = sum(len(issued) for rank in observed for issued in rank.issued.values())
    wrong = sorted(different | partial | {f"none on {dim}" for dim in silent})
    return Row("axes where ranks' collectives differ", _number(wrong), f"0 ({number:,} collectives)", not wrong)


def _dimensions_in_use(training: Training) -> set[str]:
    """Along which the optimizer has to communicate."""
    sizes = training.sizes
    is_known = sizes.fs > 1 or sizes.tp > 1  # to DTensors, whose mesh holds dp too: see network.distribute()
    shares = ALGORITHMS[training.algorithm].shares_among_copies and is_known
    used = {"dp"} if sizes.dp > 1 and (training.averages or shares or training.has_owners) else set()
    return used | _cutting_dimensions_in_use(training)


def _cutting_dimensions_in_use(training: Training) -> set[str]:
    """Those of fs and tp on which a plan of the same network lets the algorithm send anything."""
    sizes = asdict(training.sizes)
    groups = param_groups(Network(training.shape.on(training.sizes.tp)))
    planned = plan([{**group, **training.options} for group in groups], sizes, tp_plan=CUTS)
    name = "dion_dense" if training.algorithm == "dion" else training.algorithm
    axes = (axis for axis, elements in planned.estimates[name].cost.elements.items() if elements)
    return {dim for axis in axes for dim in axis.split("_")} & {dim for dim in ("fs", "tp") if sizes[dim] > 1}


def _traffic(observed: list[Observed], training: Training) -> Row:
    wrong, total = set(), 0
    for rank in observed:
        if len(rank.traffic) != training.steps:
            wrong.add(f"rank {rank.rank} counted {len(rank.traffic)} steps")
        for sent, expected in rank.traffic:
            total += sum(sent.values())
            for axis in sent.keys() | expected.keys():
                if sent.get(axis, 0) != expected.get(axis, 0):
                    wrong.add(f"{axis} of rank {rank.rank}: {sent.get(axis, 0)} for {expected.get(axis, 0)}")
    if _dimensions_in_use(training) and not total:
        wrong.add("nothing was sent")
    return Row("counters that differ from the formulas", _number(sorted(wrong)), f"0 ({total:,} elements)", not wrong)


def _number(wrong: list[str]) -> str:
    """How many, and the first few."""
    return f"{len(wrong)} ({', '.join(wrong[:3])})" if wrong else "0"
