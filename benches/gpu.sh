#!/usr/bin/env bash
# Trains Stable Diffusion 2's U-Net on this machine's GPU, in Tidemill and in diffusers, and prints
# the images per second of each.
#
#   make wheel                         # with a network; diffusers' wheel may be in the same folder
#   bash benches/gpu.sh target/wheels  # on the GPU machine, which has PyTorch and transformers
#
# It downloads nothing. Arguments after the folder go to `python -m benches.gpu`: --sides, --pixels
# and --batch choose what to measure, --limit-s is the time limit in seconds for all sides (460,
# from the start of this script), --side-limit-s that of one side (240).
# gpu.md and gpu.json in target/bench/gpu are written after each side. Further calls reuse the data
# and add results, as long as device and versions are the same, for example for torch.compile alone:
#
#   bash benches/gpu.sh target/wheels --sides "diffusers, torch.compile"
#   bash benches/gpu.sh target/wheels --sides "Tidemill, recorded" --pixels 512 --batch 64
#
# --model measures another network (sdxl, sd3, sd3.5); with a folder of its own, results of both stay:
#
#   bash benches/gpu.sh target/wheels --model sdxl --pixels 1024 --batch 8 --folder target/bench/gpu-sdxl
#
# What else docs/gpu.md says of a GPU is measured in eight minutes by
#
#   bash benches/gpu.sh target/wheels --checks            # --only "first step" encoders: some of it
#
# The exit code is 1 if a side or check has failed; the table has the reason.
set -euo pipefail
started=$(date +%s)
cd "$(dirname "$0")/.."
wheels=${1:-target/wheels}
site=target/gpu-site
python3 -m pip install --quiet --no-index --no-deps --upgrade --target "$site" "$wheels"/*.whl
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
bench=gpu
if [ "${2:-}" = --checks ]; then
  bench=gpu_checks
  shift
fi
exec python3 -m "benches.$bench" --force --started "$started" "${@:2}"
