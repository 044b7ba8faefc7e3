"""A matrix cut by fully-sharded and tensor parallel axes, and what a step sends."""

from shapes import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, Drawing

SIDE_M, SIDE_N, R = 240, 320, 44  # pixels
FS, TP = 4, 2


def drawing() -> Drawing:
    d = Drawing(860, 600, "A matrix cut into 4 by 2 pieces, the factors that are cut with it, and what travels")
    cut(d)
    factors(d)
    sent(d)
    return d


def cut(d: Drawing) -> None:
    left, top = 60, 70
    d.text(left, 30, "A piece of X, G and M on each rank", weight="bold")
    d.text(left + SIDE_N / 2, 58, "n columns, cut by 4 shards (FS)", color=GREY, anchor="middle")
    for i in range(TP):
        for j in range(FS):
            x, y = left + j * SIDE_N / FS, top + i * SIDE_M / TP
            mine = (i, j) == (0, 1)
            d.box(x, y, SIDE_N / FS, SIDE_M / TP, BLUE, f"rank {FS * i + j}" if not mine else "rank 1:\nB₁₂")
            if mine:
                d.box(x + 2, y + 2, SIDE_N / FS - 4, SIDE_M / TP - 4, BLUE)
    d.parts.append(
        f'<text transform="translate({left - 14},{top + SIDE_M / 2}) rotate(-90)" font-size="14" fill="{GREY}" '
        f'text-anchor="middle">m rows, cut by TP</text>'
    )


def factors(d: Drawing) -> None:
    d.text(470, 30, 'The factors (orientation="left")', weight="bold")
    for i in range(TP):
        d.box(500, 70 + i * SIDE_M / TP, R, SIDE_M / TP, GREEN, f"P{'₁₂'[i]}")
    d.text(560, 128, "P: the ranks of a row of the grid", color=GREY)
    d.text(560, 148, "hold the same rows of P", color=GREY)
    for j in range(FS):
        d.box(560 + 64 * j, 190, R, SIDE_N / FS, PURPLE, f"R{'₁₂₃₄'[j]}")
    d.text(560, 294, "R and Q: a column of the grid has", color=GREY)
    d.text(560, 314, "its own rows; columns of Q are", color=GREY)
    d.text(560, 334, "shared out to its ranks, r/2 each", color=GREY)


def sent(d: Drawing) -> None:
    d.text(60, 372, "What one step sends of an m×n matrix", weight="bold")
    rows = [
        ("Q is put together", "n/4 · r", ORANGE, "TP"),
        ("B Q: sums of partial products", "m/2 · r", GREEN, "FS"),
        ("P orthonormal: lengths of columns, r×r Gram matrices", "r² + r", GREEN, "TP"),
        ("Bᵀ P: sums of partial products", "n/4 · r", PURPLE, "TP"),
        ("lengths of the columns of R", "r", PURPLE, "FS"),
        ("with compressed replicas: means of P and R", "m/2 · r + n/4 · r", INK, "DP"),
    ]
    for index, (words, size, color, axis) in enumerate(rows):
        y = 404 + 28 * index
        d.box(60, y - 17, 40, 22, color, axis)
        d.text(116, y, words)
        d.text(800, y, size, anchor="end", color=color, weight="bold")
    d.text(60, 404 + 28 * 6 + 8, "No rank ever holds the matrix, and no message has m·n numbers.", color=GREY)
