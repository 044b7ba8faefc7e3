"""What a user did wrong, said in one sentence and with an exit code, never with a traceback."""

import sys
from collections.abc import Callable
from pathlib import Path


class Problem(Exception):
    """One sentence for the user; `code` is the exit code: 2 for wrong input, 1 for a run that failed."""

    def __init__(self, sentence: str, code: int = 2) -> None:
        super().__init__(sentence)
        self.code = code


def run_script(main: Callable[[list[str]], int]) -> None:
    """Run `main` on the command line's arguments and exit with what it returns or with its problem's code."""
    script = Path(sys.argv[0]).name
    try:
        sys.exit(main(sys.argv[1:]))
    except Problem as problem:
        print(f"{script}: {problem}", file=sys.stderr)
        sys.exit(problem.code)
    except OSError as error:
        # The file system's own refusals: a full disk, a folder that may not be written.
        print(f"{script}: {error.strerror or error}: {error.filename or 'output'}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"{script}: interrupted", file=sys.stderr)
        sys.exit(130)
