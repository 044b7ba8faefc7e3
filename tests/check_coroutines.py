"""The shapes of co_await that g++ 12 compiles correctly, and no others, in the files given (default: csrc, tests/cpp).

A `co_await` is a whole statement or a whole right-hand side, and its operand a plain call on named values: no braces,
lambda, ?:, nested call, condition or structured binding. The parameters of a coroutine are taken by value, because a
reference may be gone when the coroutine goes on. Prints one line for each violation and exits with 1 if there are any.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

NAME = r"[A-Za-z_]\w*"
# A call on named values: names, members, elements, numbers and arithmetic between them.
CALL = rf"(?:{NAME}(?:::|\.|->))*{NAME}(?:<[\w:, ]*>)?\((?:[\w\s,.+\-*/&:\[\]]|->)*\)"
# `const Type name = `, `name = `, `name += `, `*name = `, `name.member[i] = `.
TARGET = rf"(?:(?:const\s+)?[\w:]+(?:<[\w:<>, ]*>)?[\s&*]+{NAME}\s*=|\*?{NAME}(?:(?:\.|->){NAME}|\[\w+\])*\s*[-+*/]?=)"
ALLOWED = re.compile(rf"(?:{TARGET}\s*)?co_await\s+{CALL}")

# `Task<T> name(`, and `(...) -> Task<T>` of a lambda.
COROUTINE = re.compile(rf"\bTask<[\w:<>*, ]*>\s+(?:{NAME}::)*{NAME}\s*\(")
LAMBDA = re.compile(r"\](\([^()]*\))\s*(?:mutable\s*)?->\s*(?:\w+::)*Task<")


def blanked(source: str) -> str:
    """The source with comments and literals replaced by blanks of the same length, line by line."""
    literal = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
    return literal.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)


def violations(source: str) -> list[tuple[int, str]]:
    """The line and the reason of each violation in a C++ source."""
    code = blanked(source)
    found = []
    for match in re.finditer(r"\bco_await\b", code):
        begin = max(code.rfind(mark, 0, match.start()) for mark in ";{}") + 1
        end = code.find(";", match.start())
        statement = " ".join(code[begin:end].split())
        if not ALLOWED.fullmatch(statement):
            found.append((match.start(), f"co_await must be a statement or a right-hand side of its own: {statement}"))
    for match in COROUTINE.finditer(code):
        found += _references(match.end() - 1, _parameters(code, match.end() - 1))
    for match in LAMBDA.finditer(code):
        found += _references(match.start(), match[1])
    return [(code.count("\n", 0, position) + 1, reason) for position, reason in sorted(found)]


def _parameters(code: str, opening: int) -> str:
    """From an opening parenthesis to the one that closes it."""
    depth = 0
    for position in range(opening, len(code)):
        depth += {"(": 1, ")": -1}.get(code[position], 0)
        if depth == 0:
            return code[opening : position + 1]
    return code[opening:]


def _references(position: int, parameters: str) -> list[tuple[int, str]]:
    if "&" not in parameters:
        return []
    return [(position, f"a coroutine takes its parameters by value: {' '.join(parameters.split())}")]


def main(arguments: list[str]) -> int:
    paths = [Path(argument) for argument in arguments] or [
        path
        for folder in ("csrc", "tests/cpp")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".h", ".cpp")
    ]
    count = 0
    for path in paths:
        for line, reason in violations(path.read_text()):
            print(f"{path}:{line}: {reason}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
