"""One call of run.sh: its parts one after the other, each for a limited time, whatever became of those before.

What they write goes to FOLDER/log.txt, the rows among it to FOLDER/rows.jsonl, line by line as they come. Each part
adds a row of `kind` "part": `seconds` and its `outcome`, or the `problem`. Little is printed, as whoever runs this may
see only the end of it: each part's outcome, the last lines of one that failed, and what the report says.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, NoReturn, TextIO

from gpu_calls import CALLS, REPORT, ROOT, STAND_INS, Command, Part, Settings, parts_of
from gpu_child import GRACE, row_of, run

SECONDS = 500.0  # of a call: with what it takes to end commands that do not want to, nine minutes
TAIL = 15  # lines of a part that failed
RESERVED = 30.0  # of them for the report
LEAST = 5.0  # for which it is worth to begin a part
MARGIN = 6.0  # before its end in which a part begins no row
USAGE = "run.sh [--dry] [--only PART,...] [--earlier FOLDER] [--dion FOLDER] [--seconds S] CALL FOLDER [-- FLAGS]"


class Call:
    def __init__(self, name: str, given: Settings, seconds: float) -> None:
        self.name = name
        self.given = given
        self.end = time.monotonic() + seconds
        given.folder.mkdir(parents=True, exist_ok=True)
        self.log = open(given.folder / "log.txt", "a", encoding="utf-8")  # noqa: SIM115
        self.rows = open(given.folder / "rows.jsonl", "a", encoding="utf-8")  # noqa: SIM115
        if self.rows.tell() and not (given.folder / "rows.jsonl").read_text(encoding="utf-8").endswith("\n"):
            self.rows.write("\n")  # a last line that was cut off is no beginning of another

    def say(self, text: str) -> None:
        self._write(self.log, text)
        print(text, flush=True)

    def take(self, line: str) -> None:
        self._write(self.log, line)
        if row_of(line) is not None:
            self._write(self.rows, line)

    @staticmethod
    def _write(file: TextIO, line: str) -> None:
        file.write(line + "\n")
        file.flush()

    def run(self, part: Part) -> bool:
        """Whether a part succeeded."""
        begin = time.monotonic()
        left = self.end - begin - (0 if part.name == REPORT else RESERVED)
        limit = max(part.limit, RESERVED) if part.name == REPORT else min(part.limit, left)
        self._write(self.log, f"=== {part.name}, for at most {max(limit, 0):.0f} s")
        problems = []
        said: deque[str] = deque(maxlen=None if part.name == REPORT else TAIL)

        def take(line: str) -> None:
            self.take(line)
            if row_of(line) is None:
                said.append(line)

        for command in part.commands:
            remaining = begin + limit - time.monotonic()
            if remaining < LEAST:
                problems.append("left out: the time of the call was over")
                break
            status, stopped = run(*self.prepared(command, remaining), ROOT, remaining - GRACE / 2, take)
            if stopped:
                problems.append(f"stopped after {time.monotonic() - begin:.0f} s")
            elif status != 0:
                problems.append(f"failed, status {status}")
        row: dict[str, Any] = {"kind": "part", "call": self.name, "part": part.name}
        row["seconds"] = round(time.monotonic() - begin, 1)
        row |= {"problem": "; ".join(problems)} if problems else {"outcome": "done"}
        self.take(json.dumps(row))
        if problems or part.name == REPORT:
            print("\n".join(said))
        self.say(f"=== {part.name}: {row.get('problem', 'done')}, {row['seconds']:.0f} s")
        return not problems

    def prepared(self, command: Command, seconds: float) -> tuple[list[str], dict[str, str]]:
        """The words of a command and its environment."""
        end = ["--end", f"{time.time() + max(seconds - MARGIN, 1):.1f}"] if command.measures else []
        paths = [*map(str, command.paths), str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
        environment |= {"KINETO_LOG_LEVEL": "5", **dict(command.environment)}
        if self.given.dry:
            environment["PATH"] = f"{STAND_INS}{os.pathsep}{environment['PATH']}"
        return [*command.arguments, *end], environment


def refuse(problem: str) -> NoReturn:
    print(f"run.sh: {problem}", file=sys.stderr)
    sys.exit(2)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        refuse(message)


def parse(arguments: list[str]) -> tuple[str, Settings, list[str], float]:
    """The call, its settings, the parts that are wanted, and its seconds."""
    parser = Parser(prog="run.sh", usage=USAGE, allow_abbrev=False)
    parser.add_argument("call", choices=CALLS)
    parser.add_argument("folder", type=Path, help="where everything that was found goes")
    parser.add_argument("--earlier", type=Path, action="append", default=[], help="an earlier call's folder")
    parser.add_argument("--dion", type=Path, help="a checkout of microsoft/dion")
    parser.add_argument("--only", help="these parts")
    parser.add_argument("--dry", action="store_true", help="without a GPU, on tiny matrices")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="in which the call ends")
    own, flags = arguments, []
    if "--" in arguments:
        own, flags = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    given = parser.parse_args(own)
    earlier = [folder.resolve() for folder in given.earlier]
    for folder in earlier:
        if not folder.is_dir():  # a call is too dear to end here
            print(f"run.sh: nothing is taken from {folder}, which is not there", flush=True)
    python = os.environ.get("PYTHON", sys.executable)
    settings = Settings(
        os.path.abspath(shutil.which(python) or python),  # parts run elsewhere; a link of an environment stays one
        given.folder.resolve(),
        tuple(folder for folder in earlier if folder.is_dir()),
        given.dion.resolve() if given.dion else None,
        given.dry,
        tuple(flags),
    )
    names = [part.name for part in parts_of(given.call, settings)]
    wanted = given.only.split(",") if given.only else names
    unknown = [name for name in wanted if name not in names]
    if unknown:
        refuse(f"no such part: {unknown[0]}; {given.call} has {' '.join(names)}")
    return given.call, settings, wanted, given.seconds


def end_politely(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, end_politely)  # the running command ends with this
    name, settings, wanted, seconds = parse(arguments)
    call = Call(name, settings, seconds)
    failed = 0
    for part in parts_of(name, settings):
        if part.name in wanted and not call.run(part):
            failed += 1
    call.say(f"=== {name}: {failed} of {len(wanted)} parts failed" if failed else f"=== {name}: done")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
