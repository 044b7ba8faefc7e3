"""What happens between step() and its return."""

from shapes import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Drawing

STATIONS = [
    ("Front", "shows the core what\nthe program has changed", BLUE),
    ("Check", "makes states; every tensor and\noption, one sentence for each", ORANGE),
    ("Plan", "kept where nothing has changed:\nbatches, owners, one workspace", ORANGE),
    ("Agree", "88 bytes along each axis:\nrefused by one, refused by all", RED),
    ("Run", "one coroutine for each\nbatch, in turns", GREEN),
    ("Count", "traffic, columns without\nsignal, skipped steps", BLUE),
]


def drawing() -> Drawing:
    d = Drawing(900, 400, "The life of a step: read, check, plan, agree, run, count")
    for number, (name, purpose, color) in enumerate(STATIONS):
        x, y = 20 + 294 * (number % 3), 20 + 124 * (number // 3)
        d.box(x, y, 258, 92, color)
        d.text(x + 14, y + 28, f"{number + 1}  {name}", color=color, weight="bold")
        for line, words in enumerate(purpose.split("\n")):
            d.text(x + 14, y + 54 + 20 * line, words, size=13)
        if number % 3 < 2:
            d.arrow([(x + 262, y + 46), (x + 290, y + 46)])
    d.arrow([(737, 116), (737, 128), (149, 128), (149, 140)])
    overlap(d)
    d.text(20, 388, "Nothing is written before station 5.", color=GREY)
    return d


PARTS = (("B Q", GREEN), ("sum", GREY), ("P, R", GREEN), ("sum", GREY), ("update", GREEN))
BEGINS = {"batch 1": (0, 90, 210, 300, 420), "batch 2": (90, 210, 330, 420, 540)}
LENGTHS = {GREEN: 90, GREY: 120}  # pixels


def overlap(d: Drawing) -> None:
    """While one batch waits for the network, another one computes."""
    d.text(20, 284, "Station 5", weight="bold")
    for row, (name, begins) in enumerate(BEGINS.items()):
        y = 296 + 36 * row
        d.text(40, y + 20, name, color=PURPLE)
        for begin, (label, color) in zip(begins, PARTS, strict=True):
            d.box(120 + begin, y, LENGTHS[color] - 4, 28, color, label)
    d.text(770, 316, "computes", color=GREEN)
    d.text(770, 352, "communicates", color=GREY)
