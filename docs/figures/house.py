"""The folders of the library: each depends on those below it alone."""

from shapes import BLUE, GREEN, GREY, ORANGE, PURPLE, Drawing

FLOORS = [
    [
        ("torchdion (Python)", "torch.optim front, DTensors,\nverify, plan, demo", BLUE),
        ("optim", "torch::optim front,\nfiles of checkpoints", BLUE),
    ],
    [("bindings", "pybind11 tables for the Python front", BLUE)],
    [
        ("engine", "an optimizer between steps;\nplan, check, allocate, run", ORANGE),
        ("routing", "what a parameter is", ORANGE),
        ("others", "names of other projects", ORANGE),
    ],
    [("algorithms", "one declaration and one update each, as the paper writes it", GREEN)],
    [
        ("linalg", "batched products and factorizations, CPU and CUDA", PURPLE),
        ("comm", "coroutines, axes, collectives", PURPLE),
    ],
]


def drawing() -> Drawing:
    d = Drawing(860, 470, "The house: fronts, bindings, engine, algorithms, linear algebra and communication")
    for number, floor in enumerate(FLOORS):
        width = (820 - 16 * (len(floor) - 1)) / len(floor)
        for place, (name, purpose, color) in enumerate(floor):
            x, y = 20 + place * (width + 16), 16 + 84 * number
            d.box(x, y, width, 68, color)
            d.text(x + 14, y + 26, name, color=color, weight="bold")
            for line, words in enumerate(purpose.split("\n")):
                d.text(x + 14, y + 46 + 16 * line, words, size=13)
    d.text(20, 456, "A file includes what stands beside it or on a lower floor, never what stands above.", color=GREY)
    return d
