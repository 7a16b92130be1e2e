#!/bin/sh
# What only a CUDA device can show: the run, its lag, the agreement of generator and learner, the replay.
# Usage: tests/cuda.sh [BINARY]   (default: target/release/tidegate; needs about two minutes)
# Needs libtorch 2.11 with CUDA: LIBTORCH names it, or python3 can `import torch`.
set -eu
cd "$(dirname "$0")/.."
tidegate=${1:-target/release/tidegate}
. tests/libtorch.sh
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

echo "== run: 20 steps of the demo"
"$tidegate" run data/demo.toml --device cuda:0 --set steps=20 --set output="$out/run"
echo "== analyze: lag against the bound"
"$tidegate" analyze "$out/run" | grep -E '^  (mean .* bound|BROKEN|current)'
echo "== on policy: generator and learner agree (ESS 1, KL about 0)"
"$tidegate" run data/demo.toml --device cuda:0 --set steps=3 --set schedule.max_lag=0 --set eval.prompts=0 --set output="$out/on"
"$tidegate" analyze "$out/on" | grep -E '^  (mean .* bound|BROKEN|current)'
echo "== replay: bit for bit, if the device's sums do not depend on chance"
"$tidegate" replay "$out/run" || echo "the replay differs: see above"
