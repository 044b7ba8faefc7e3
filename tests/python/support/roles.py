"""The parameters of the tests of the law: one of every role that a parameter can have on a (dp, fs, tp) mesh."""

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Role:
    """What a parameter is, and which of its dimensions fs and tp cut (None: every rank has all of it)."""

    name: str
    shape: tuple[int, ...]
    fs: int | None = None
    tp: int | None = None
    count: int = 1  # of parameters alike, which share a batch
    plain: bool = False  # no DTensor
    options: dict[str, Any] = field(default_factory=dict, hash=False)  # of their group

    @property
    def is_dion(self) -> bool:
        return len(self.shape) > 1 and "algorithm" not in self.options

    @property
    def form(self) -> dict[str, Any]:
        return {"batch_dims": 0, "blocks": 1, "fan_in_first": False} | self.options


STACK = {"batch_dims": 1}
ADAMW = {"algorithm": "adamw"}
LION = {"algorithm": "lion"}
ROLES = (
    Role("tall", (48, 24), 0, 1, count=3),
    Role("wide", (24, 48), 1, 0, count=2),
    Role("square", (32, 32), 0, 1),
    Role("uneven", (37, 29), 0, 1, count=2),
    Role("uneven, swapped", (29, 37), 1, 0),
    Role("empty pieces", (7, 41), 0, 1),
    Role("cut by fs alone", (41, 25), 0, None, count=9),
    Role("cut by tp alone", (25, 41), None, 1, count=2),
    Role("columns cut by fs", (26, 39), 1, None, count=9),
    Role("not cut", (20, 28), None, None, count=3),
    Role("plain", (22, 18), plain=True, count=2),
    Role("rows cut twice", (50, 17), 0, 0),
    Role("columns cut twice", (17, 50), 1, 1),
    Role("experts, stack cut by fs", (5, 24, 17), 0, 2, options=STACK),
    Role("experts, stack cut by tp", (6, 17, 21), 1, 0, options=STACK),
    Role("experts, stack whole", (3, 26, 18), 1, 2, options=STACK),
    Role("convolution", (25, 5, 3, 2), 0, None),
    Role("fan-in first", (18, 27), 0, 1, options={"fan_in_first": True}),
    Role("bias", (33,), 0, None),
    Role("norm", (29,), None, None, options=ADAMW, count=2),
    Role("embedding", (30, 13), 0, 1, options=LION),
    Role("head", (13, 30), 1, None, options=ADAMW),
    Role("plain bias", (11,), plain=True),
)

_IN_CORE = ("tall", "wide", "uneven", "empty pieces", "cut by fs alone", "columns cut by fs", "not cut", "bias", "norm")
CORE = tuple(replace(role, count=min(role.count, 3)) for role in ROLES if role.name in _IN_CORE)
"""For meshes and dtypes of which others have every role, so that the tests stay within minutes."""
