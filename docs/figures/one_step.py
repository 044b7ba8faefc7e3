"""One step of Dion on one matrix, with the matrices' proportions."""

from shapes import BLUE, GREEN, GREY, ORANGE, PURPLE, Drawing

M, N, R = 104, 150, 30  # pixels of the rows, the columns and the rank


def drawing() -> Drawing:
    d = Drawing(860, 560, "One step of Dion: momentum, one power iteration, error feedback, update")
    add_the_gradient(d)
    iterate(d)
    feed_back(d)
    return d


def heading(d: Drawing, y: float, number: int, words: str, formula: str) -> None:
    d.box(20, y, 24, 24, BLUE, str(number))
    d.text(56, y + 17, words, weight="bold")
    d.text(840, y + 17, formula, color=GREY, anchor="end", style="italic")


def add_the_gradient(d: Drawing) -> None:
    heading(d, 14, 1, "Add the gradient to the momentum", "B = M + G")
    d.box(56, 54, N, M, BLUE, "M")
    d.text(222, 112, "+", size=20)
    d.box(250, 54, N, M, GREY, "G")
    d.text(416, 112, "=", size=20)
    d.box(444, 54, N, M, BLUE, "B")
    d.text(616, 94, "m rows, n columns.", color=GREY)
    d.text(616, 116, "M is a state.", color=GREY)


def iterate(d: Drawing) -> None:
    heading(d, 182, 2, "One power iteration, from the last step's Q", "P = orthonormalize(B Q),  R = Bᵀ P")
    d.box(56, 246, N, M, BLUE, "B")
    d.box(216, 223, R, N, ORANGE, "Q")
    d.arrow([(258, 298), (306, 298)])
    d.box(316, 246, R, M, GREEN, "P")
    d.text(362, 270, "r columns,", color=GREY)
    d.text(362, 290, "orthonormal", color=GREY)
    d.text(362, 310, "by a Cholesky QR", color=GREY)
    d.box(540, 223, M, N, BLUE, "Bᵀ")
    d.box(654, 246, R, M, GREEN, "P")
    d.arrow([(696, 298), (744, 298)])
    d.box(754, 223, R, N, PURPLE, "R")


def feed_back(d: Drawing) -> None:
    heading(d, 392, 3, "Three results", "only M and Q are kept")
    boxes = [
        (BLUE, "Momentum: error feedback", "M = B − (1 − μ) P Rᵀ", "what P Rᵀ misses of B stays whole"),
        (ORANGE, "Warm start of the next step", "Q = R, its columns of length 1", "so that one iteration is enough"),
        (GREEN, "Weights", "X = (1 − ηλ) X − η √(m/n) P Qᵀ", "all r singular values near 1"),
    ]
    for index, (color, title, formula, note) in enumerate(boxes):
        x = 20 + 278 * index
        d.box(x, 430, 264, 112, color)
        d.text(x + 14, 458, title, color=color, weight="bold")
        d.text(x + 14, 490, formula)
        d.text(x + 14, 522, note, color=GREY, size=13)
