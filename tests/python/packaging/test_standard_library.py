"""The C++ standard library is linked as torch has it, shared, wherever the compiler looks for it."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
CMAKE_LISTS = f"""
cmake_minimum_required(VERSION 3.25)
project(checked CXX)
include({ROOT}/cmake/StandardLibrary.cmake)
add_library(checked SHARED checked.cpp)
"""
SOURCE = "#include <iostream>\nvoid greet() { std::cout << 1; }\n"


def built(folder: Path, compiler: Path) -> tuple[str, str]:
    """What configuring says, and what the library needs."""
    (folder / "CMakeLists.txt").write_text(CMAKE_LISTS)
    (folder / "checked.cpp").write_text(SOURCE)
    environment = {name: value for name, value in os.environ.items() if name != "LDFLAGS"} | {"CXX": str(compiler)}
    said = ""
    for arguments in (["-S", folder, "-B", folder / "build"], ["--build", folder / "build"]):
        done = subprocess.run(["cmake", *arguments], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said += done.stdout
    library = folder / "build" / "libchecked.so"
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return said, needed


def test_a_compiler_that_finds_the_shared_library_is_left_alone(tmp_path: Path) -> None:
    said, needed = built(tmp_path, Path(shutil.which("g++")))
    assert "libstdc++" not in said
    assert "[libstdc++.so.6]" in needed


def test_a_link_to_nothing_does_not_make_it_static(tmp_path: Path) -> None:
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "libstdc++.so").symlink_to("nowhere")
    found = subprocess.run(["g++", "-print-file-name=libstdc++.a"], capture_output=True, text=True, check=True).stdout
    (libraries / "libstdc++.a").symlink_to(found.strip())
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\nexec g++ -L{libraries} "$@"\n')
    compiler.chmod(0o755)
    said, needed = built(tmp_path, compiler)
    assert "The compiler finds no libstdc++.so; linking" in said
    assert "[libstdc++.so.6]" in needed
