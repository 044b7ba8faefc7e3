"""What the commands of ``python -m torchdion`` share."""

import argparse
import sys
from typing import NoReturn


class OneSentenceParser(argparse.ArgumentParser):
    """Refuses in one sentence, without the usage in front of it, and with exit status 2."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(2)
