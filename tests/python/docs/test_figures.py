"""The figures are what their programs draw, and say what the library does."""

import importlib
import xml.etree.ElementTree as ElementTree

import left_over
import price_of_rank
import pytest
import torch
from draw import NAMES
from error_feedback import moved
from pages import ROOT

import torchdion

FIGURES = ROOT / "docs" / "figures"
DRAWN = ("cut_matrix", "house", "life_of_a_step", "logo", "one_step")  # the others are matplotlib's


@pytest.mark.parametrize("name", DRAWN)
def test_a_committed_figure_is_what_its_program_draws(name: str) -> None:
    assert (FIGURES / f"{name}.svg").read_text() == importlib.import_module(name).drawing().svg()


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_an_svg_whose_words_stay_inside(name: str) -> None:
    root = ElementTree.fromstring((FIGURES / f"{name}.svg").read_text())
    width = float(root.attrib["viewBox"].split()[2])
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        if "x" in text.attrib:
            room = 0.6 * float(text.attrib["font-size"]) * len("".join(text.itertext()))
            share = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.attrib["text-anchor"]]
            begin = float(text.attrib["x"]) - share * room
            assert begin >= 0 and begin + room <= width, "".join(text.itertext())


def test_with_error_feedback_every_direction_moves_and_without_only_the_largest() -> None:
    assert all(length > 5 for length in moved(True)[-1])
    assert moved(False)[-1] == pytest.approx([60, 60, 0, 0, 0], abs=1e-9)


def test_dions_update_ends_at_its_rank_and_a_residual_goes_on_below_it() -> None:
    assert max(left_over.update(None)[left_over.RANK :]) < 1e-9
    scaled, sign = left_over.update("scaled"), left_over.update("sign")
    assert all(0 < value < 1 for value in scaled[left_over.RANK :])
    assert scaled[left_over.RANK - 1] == pytest.approx(1, abs=0.1)
    assert sum(sign) > sum(scaled)
    assert min(left_over.of_muon()) > 0.8


def test_the_price_of_a_rank_is_lower_with_the_residual_and_muons_is_1() -> None:
    losses, steps = price_of_rank.points()
    for of_all in (losses, steps):
        dion, signs = ({point.rank: point.value for point in of_all[name]} for name in ("Dion Nesterov", "Signs"))
        assert set(signs) == {"0", "d/32", "d/16", "d/8", "d/4"}
        assert all(signs[rank] < dion[rank] for rank in signs if rank in dion)
    assert [point[:4] for point in steps["Muon"]] == [(1, 1, 1, 1)]
    assert all(0 < point.operations < 1 for name in ("Dion Nesterov", "Signs") for point in steps[name])


def test_the_table_of_the_cut_matrix_is_what_a_step_sends() -> None:
    """m/2 r + r along FS; 2 · n/4 r + r² + r along TP; m/2 r + n/4 r along DP."""
    m, n, r = 256, 512, 16
    model = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(n, m, bias=False)})
    made = torchdion.plan(
        model, {"dp": 2, "fs": 4, "tp": 2}, rank_fraction=r / m, orientation="left", fs_cuts="other",
        tp_plan={"q_proj": "colwise"},
    )  # fmt: skip
    sent = made.estimates["dion_compressed"].cost.elements
    assert sent == {"dp": m // 2 * r + n // 4 * r, "fs": m // 2 * r + r, "tp": 2 * (n // 4) * r + r * r + r}
