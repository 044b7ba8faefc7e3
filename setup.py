"""Drives CMake. Everything it installs lands inside the package: _C, lib/, include/, share/cmake/torchdion/."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
OLDEST = "torch>=2.10"


class CMakeBuild(build_ext):
    def run(self) -> None:
        for tool in ("cmake", "ninja"):
            if shutil.which(tool) is None:
                sys.exit(f"torchdion needs {tool}, which was not found: pip install cmake ninja")
        editable = self.inplace or getattr(self, "editable_mode", False)
        package = ROOT / "python" if editable else Path(self.build_lib).resolve()
        tree = Path(os.environ.get("TORCHDION_BUILD_DIR", ROOT / "build" / "package"))
        options = {
            "Python_EXECUTABLE": sys.executable,
            "CMAKE_INSTALL_PREFIX": package / "torchdion",
            "TORCHDION_EDITABLE": "ON" if editable else "OFF",
        }
        if os.environ.get("TORCHDION_NO_CUDA") == "1":
            options["TORCHDION_CUDA"] = "OFF"
        arguments = [f"-D{name}={value}" for name, value in options.items()]
        arguments += os.environ.get("CMAKE_ARGS", "").split()
        jobs = [f"-j{os.environ['MAX_JOBS']}"] if "MAX_JOBS" in os.environ else []
        subprocess.check_call(["cmake", "-S", str(ROOT), "-B", str(tree), "-G", "Ninja", *arguments])
        # A tree that `make test` has used knows the C++ tests too; they are no part of the package.
        subprocess.check_call(["cmake", "--build", str(tree), "--target", "torchdion", "_C", *jobs])
        subprocess.check_call(["cmake", "--install", str(tree)])

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Sources(sdist):
    """Sources fit every torch, whichever is installed where they are packed."""

    def run(self) -> None:
        self.distribution.install_requires = self.distribution.metadata.install_requires = requirements(OLDEST)
        super().run()


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


def requirements(torch: str) -> list[str]:
    return [torch, "numpy"]


def installed_torch() -> str:
    """What a build asks for: any patch release of the torch that it was made with, or that very development build."""
    try:
        version = importlib.metadata.version("torch").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return OLDEST  # only the sources can be packed without one
    release = re.fullmatch(r"(\d+\.\d+)\.\d+", version)
    return f"torch=={release[1]}.*" if release else f"torch=={version}"


setup(
    ext_modules=[Extension("torchdion._C", [])],
    cmdclass={"build_ext": CMakeBuild, "sdist": Sources},
    distclass=BinaryDistribution,
    install_requires=requirements(installed_torch()),
)
