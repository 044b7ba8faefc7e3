#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that has one, from a checkout: builds, runs the tests of CUDA,
# compute-sanitizer on the kernels, then the benchmarks. Results go to the folder named, as JSON lines and logs.
#
#   benchmarks/gpu/run.sh [FOLDER]      (default: build/gpu/results)
#
# Needs Python with torch 2.11 and pytest, nvcc, CMake, Ninja and pybind11; no network. Every part runs, whatever the
# others did; the exit status is that of the tests.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
results=$(realpath -m "${1:-build/gpu/results}")
mkdir -p "$results"
export PYTHONPATH=$PWD/python:${PYTHONPATH:-} PYTHONUNBUFFERED=1

cmake -S . -B build/gpu/tree -G Ninja -DTORCHDION_EDITABLE=ON -DTORCHDION_TESTS=OFF -DTORCHDION_CUDA=ON \
  -DPython_EXECUTABLE="$(command -v python3)" -DCMAKE_INSTALL_PREFIX="$PWD/python/torchdion" &&
  cmake --build build/gpu/tree && cmake --install build/gpu/tree > /dev/null || exit 1
python3 -m torchdion | tee "$results/machine.txt"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,memory.total --format=csv | tee -a "$results/machine.txt"

python3 -m pytest -q tests/python/test_cuda.py --junitxml="$results/tests.xml" 2>&1 | tee "$results/tests.txt"
status=$?
if command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck; do
    compute-sanitizer --tool "$tool" --error-exitcode 9 python3 -m pytest -q -p no:cacheprovider \
      tests/python/test_cuda.py -k "orthonormal or normalized or sketches or without_signal" \
      > "$results/$tool.txt" 2>&1 || echo "compute-sanitizer $tool: see $results/$tool.txt"
  done
fi
python3 benchmarks/gpu/gpu_step.py 2>&1 | tee "$results/step.txt"
grep '^{' "$results/step.txt" > "$results/step.jsonl"
exit "$status"
