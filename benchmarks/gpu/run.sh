#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that has one, from a checkout: builds, runs the tests of CUDA and
# compute-sanitizer on the kernels, then the benchmarks, and makes tables and a picture of their rows.
#
#   benchmarks/gpu/run.sh [--only PART,PART...] [FOLDER] [-- FLAGS]      (default folder: build/gpu/results)
#
#   build       the package, with CUDA, into python/torchdion
#   tests       tests/python/test_cuda*.py, the operations' tests on the GPU, and python -m torchdion verify on ranks that
#               share it
#   sanitizer   some of them again under compute-sanitizer: memcheck, then racecheck
#   accuracy    how orthogonal P is, how far steps end from FP64
#   kernels     the operations of a step by themselves
#   steps       whole steps, beside the machine's limits and other optimizers
#   report      FOLDER/report.md and FOLDER/steps.png, from the rows that are there
#
# Each part has a time limit and runs whatever the others did. FOLDER/log.txt has all output, FOLDER/rows.jsonl the rows
# of the benchmarks, written as they are measured: parts may be run one by one, and a row that is measured again
# replaces the one before. FLAGS go to the benchmarks, such as "--list 120m". The exit status is 0 only if no part
# failed or ran over.
#
# Needs Python ($PYTHON, python3) with torch 2.10 or newer, pytest and matplotlib, nvcc, CMake, Ninja, pybind11 and, for its
# part, compute-sanitizer; no network.
set -uo pipefail

parts=(build tests sanitizer accuracy kernels steps report)
declare -A limits=([build]=300 [tests]=300 [sanitizer]=240 [accuracy]=75 [kernels]=75 [steps]=310 [report]=60) # seconds
python=${PYTHON:-python3}
# Small matrices, every kernel: factors, sketches, products, whole steps with Lion and AdamW.
sanitized="orthonormal or normalized or sketches or without_signal or half_precision_states or policies"
plain=(-o "addopts=-q") # markers of pytest's plugins are allowed where these are not installed

folder=build/gpu/results
only=${parts[*]}
while (($#)); do
  case $1 in
    --only)
      (($# > 1)) || { echo "run.sh: --only needs parts" >&2 && exit 2; }
      only=${2//,/ } && shift 2
      ;;
    --) shift && break ;;
    -*) echo "run.sh: no such option: $1" >&2 && exit 2 ;;
    *) folder=$1 && shift ;;
  esac
done
flags=("$@")
for part in $only; do
  [[ " ${parts[*]} " == *" $part "* ]] || { echo "run.sh: no such part: $part; there are ${parts[*]}" >&2 && exit 2; }
done
results=$(realpath -m "$folder")
cd "$(dirname "$0")/../.." || exit 1
mkdir -p "$results"
export PYTHONPATH=$PWD/python:${PYTHONPATH:-} PYTHONUNBUFFERED=1

# Without one, tests are skipped, and a skipped test is no failure.
require_gpu() {
  "$python" -c 'if True:
    import torch, torchdion._C
    found = torch.cuda.is_available() and torchdion._C.has_kernels_for("cuda")
    raise SystemExit(None if found else "run.sh: needs a GPU that torch can use, and a build with CUDA")'
}

limited() { # SECONDS COMMAND...
  timeout --kill-after=10 "$@"
}

build() {
  # shellcheck disable=SC2016
  limited "${limits[build]}" bash -euc '
    cmake -S . -B build/gpu/tree -G Ninja -DTORCHDION_EDITABLE=ON -DTORCHDION_TESTS=OFF -DTORCHDION_CUDA=ON \
      -DPython_EXECUTABLE="$(command -v "$1")" -DCMAKE_INSTALL_PREFIX="$PWD/python/torchdion"
    cmake --build build/gpu/tree
    cmake --install build/gpu/tree > /dev/null
    "$1" -m torchdion
    nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total --format=csv || true' build "$python"
}

tests() {
  require_gpu || return 1
  limited "${limits[tests]}" "$python" -m pytest "${plain[@]}" -rs -k cuda tests/python/test_cuda*.py \
    tests/python/test_linalg.py tests/python/test_orthonormalize.py --junitxml="$results/tests.xml" || return
  limited "${limits[tests]}" "$python" -m torchdion verify --mesh fs=2,tp=2 --device cuda
}

# Only our kernels are checked. What CUDA's functions return is checked by who calls them; torch's allocator would hide
# what is read or written beside a tensor.
sanitizer() {
  local tool status=0
  require_gpu || return 1
  command -v compute-sanitizer > /dev/null || { echo "run.sh: compute-sanitizer was not found" && return 1; }
  for tool in memcheck racecheck; do
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 limited $((limits[sanitizer] / 2)) \
      compute-sanitizer --tool "$tool" --error-exitcode 9 --report-api-errors no --kernel-name kns=run_program \
      "$python" -m pytest "${plain[@]}" -p no:cacheprovider tests/python/test_cuda.py -k "$sanitized" > "$results/$tool.txt" 2>&1
    local code=$?
    echo "compute-sanitizer $tool: status $code, in $results/$tool.txt"
    tail -n 5 "$results/$tool.txt"
    ((code == 0)) || status=$code
  done
  return "$status"
}

measured() { # PART PROGRAM
  limited "${limits[$1]}" "$python" "benchmarks/gpu/$2" "${flags[@]}" | tee -a "$results/rows.jsonl"
}
accuracy() { measured accuracy gpu_accuracy.py; }
kernels() { measured kernels gpu_kernels.py; }
steps() { measured steps gpu_step.py; }

report() {
  limited "${limits[report]}" "$python" benchmarks/gpu/gpu_report.py "$results/rows.jsonl" --plot "$results/steps.png" |
    tee "$results/report.md"
}

run() {
  local part code failed=0 summary=()
  for part in "${parts[@]}"; do
    [[ " $only " == *" $part "* ]] || continue
    echo "=== $part"
    local start=$SECONDS
    "$part"
    code=$?
    case $code in
      0) summary+=("$part: done, $((SECONDS - start)) s") ;;
      124 | 137) failed=1 summary+=("$part: stopped after $((SECONDS - start)) s, its limit") ;;
      *) failed=1 summary+=("$part: failed, status $code, $((SECONDS - start)) s") ;;
    esac
  done
  echo "=== summary"
  printf '%s\n' "${summary[@]}"
  return "$failed"
}

run 2>&1 | tee -a "$results/log.txt"
exit "${PIPESTATUS[0]}"
