"""Whether each file of csrc includes what it calls of torch, itself or through our own headers.

    python tests/check_includes.py

Continuous integration compiles several files as one unit, where an include that one of them lacks goes unnoticed: the
build of a user, who compiles each file alone, would fail. Operators of torch (at::empty) are in headers of their names;
the others that files call are in the table below.
"""

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "csrc", ROOT / "include")
INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.MULTILINE)
CALL = re.compile(r"\bat::([a-z_0-9]+)\(")
HEADERS = {
    **dict.fromkeys(("parallel_for", "get_num_threads", "set_num_threads", "in_parallel_region"), "ATen/Parallel.h"),
    "globalContext": "ATen/Context.h",
}


def operators() -> set[str]:
    spec = importlib.util.find_spec("torch")  # without importing it
    assert spec is not None and spec.origin is not None
    return {header.stem for header in (Path(spec.origin).parent / "include/ATen/ops").glob("*.h")}


@cache
def included(path: Path) -> frozenset[str]:
    """All headers that a file includes, and those that our own ones of them include."""
    found: set[str] = set()
    for name in INCLUDE.findall(path.read_text()):
        found.add(name)
        ours = next((folder / name for folder in FOLDERS if (folder / name).is_file()), None)
        if ours is not None:
            found |= included(ours)
    return frozenset(found)


def missing(source: str, reached: frozenset[str], names: set[str]) -> list[str]:
    """The headers that a source calls for, and that are not among those that it reaches."""
    called = set(CALL.findall(re.sub(r"//.*", "", source))) & (names | HEADERS.keys())
    return sorted({HEADERS.get(name, f"ATen/ops/{name}.h") for name in called} - reached)


def main() -> int:
    names = operators()
    found = [
        f"{path.relative_to(ROOT)} must include <{header}>"
        for path in sorted((ROOT / "csrc").rglob("*.cpp"))
        for header in missing(path.read_text(), included(path), names)
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
