"""The source distribution, packed and unpacked as a stranger does."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def unpack(folder: Path) -> Path:
    """`folder`/source, a place that stays, so that ccache knows its files again; the archive is in `folder`/packed."""
    for name in ("packed", "source"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "packed").mkdir(parents=True)
    pack = f"from setuptools import build_meta; build_meta.build_sdist({str(folder / 'packed')!r})"
    subprocess.run([sys.executable, "-c", pack], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (archive,) = (folder / "packed").iterdir()
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (folder / archive.name.removesuffix(".tar.gz")).rename(folder / "source")
    return folder / "source"
