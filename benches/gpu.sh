#!/bin/sh
# Checks and measures tidegate on a CUDA device, within six minutes: the engine's tests there; logits and rollouts against the CPU's;
# tokens a second of models of 135 M and 1.5 B random weights, decoding and training, against what the device could do at best; a run
# of the demo. Prints one line of JSON a figure and one table.
#
# Usage: benches/gpu.sh build [FOLDER]   builds the three programs, here or on another machine of this kind
#        benches/gpu.sh [FOLDER]         measures with them; builds them first where they are not and cargo is
# FOLDER (default: target/gpu) has `tidegate` (target/release/tidegate), `engine` (the bench of that name) and `tests` (those of the
# library). Of the checkout itself it needs benches/, tests/ and data/.
# Needs libtorch 2.11 with CUDA: LIBTORCH names it, or python3 can `import torch`.
# Ends with 0 if all is well, 1 if a check failed, 3 if there is no CUDA device, 4 if there is no libtorch with CUDA or no program.
set -eu
cd "$(dirname "$0")/.."

# path_of ARGUMENTS..: builds, and prints the path of what was built.
path_of() {
  cargo "$@" --no-run --message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1
}

build() {
  mkdir -p "$1"
  cargo build --release --bin tidegate
  cp "${CARGO_TARGET_DIR:-target}/release/tidegate" "$1/tidegate"
  cp "$(path_of bench --bench engine)" "$1/engine"
  cp "$(path_of test --release --lib)" "$1/tests"
}

if [ "${1:-}" = build ]; then
  build "${2:-target/gpu}"
  exit 0
fi
programs=${1:-target/gpu}

if ! [ -e /dev/nvidiactl ] && ! nvidia-smi -L >/dev/null 2>&1; then
  echo "no CUDA device: nothing was measured"
  exit 3
fi
if ! [ -x "$programs/engine" ] || ! [ -x "$programs/tests" ] || ! [ -x "$programs/tidegate" ]; then
  if ! command -v cargo >/dev/null; then
    echo "no programs in $programs and no cargo: build them elsewhere (benches/gpu.sh build) and bring that folder" >&2
    exit 4
  fi
  build "$programs"
fi
. tests/libtorch.sh

begun=$(date +%s)
failed=0
# left MOST: seconds that the next part may take, so that all of it ends within six minutes.
left() {
  remaining=$((350 - $(date +%s) + begun))
  [ "$remaining" -ge 1 ] || remaining=1
  [ "$remaining" -le "$1" ] || remaining=$1
  echo "$remaining"
}

# CUDA must be there before the first test is. `--device` of the programs loads it by itself.
echo "== the engine's tests on cuda:0"
timeout "$(left 90)" env TIDEGATE_TEST_DEVICE=cuda:0 LD_PRELOAD="$libtorch/lib/libtorch_cuda.so" "$programs/tests" engine::torch || failed=1

echo "== against the CPU, and against the device's own rates"
code=0
limit=$(left 220)
timeout "$limit" "$programs/engine" device --device cuda:0 --seconds "$((limit * 3 / 4))" || code=$?
if [ "$code" = 3 ]; then exit 3; fi
[ "$code" = 0 ] || failed=1

timeout "$(left 120)" tests/cuda.sh "$programs/tidegate" || failed=1
echo "== $(($(date +%s) - begun)) s in all; $([ "$failed" = 0 ] && echo "all is well" || echo "something FAILED: see above")"
exit "$failed"
