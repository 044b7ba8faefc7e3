"""What a user did wrong, said in one sentence and with an exit code, never with a traceback."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Problem(Exception):
    """One sentence for the user; `code` is the exit code: 2 for wrong input, 1 for a run that failed."""

    def __init__(self, sentence: str, code: int = 2) -> None:
        super().__init__(sentence)
        self.code = code


class Diverged(Problem):
    """The loss is no finite number any more."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the file system refuses here, a full disk say, is a Problem that names `path`.

    torch.save() raises an error of its own on top of it.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise Problem(f"{path} cannot be written: {cause.strerror or cause}", code=1) from error


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
