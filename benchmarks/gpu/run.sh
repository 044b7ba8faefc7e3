#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that has one, from a checkout, in three calls of at most nine minutes:
#
#   benchmarks/gpu/run.sh build-and-test FOLDER
#   benchmarks/gpu/run.sh steps FOLDER [--earlier FOLDER]...
#   benchmarks/gpu/run.sh peers FOLDER [--earlier FOLDER]... [--dion CHECKOUT]
#
# README.md beside this says what each does and leaves in FOLDER. --only PART,... runs some parts; --seconds S, 500 unless
# given, is when a call ends; FLAGS after "--" go to the programs that measure, such as "-- --list 120m"; --dry runs all
# of it without a GPU. The exit status is 0 only if no part failed.
#
# Needs Python ($PYTHON, python3) with torch 2.10 or newer, pytest and matplotlib, nvcc, CMake, Ninja and pybind11, and
# for their parts ncu and compute-sanitizer; no network.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PYTHON=${PYTHON:-python3}
exec "$PYTHON" "$here/gpu_run.py" "$@"
