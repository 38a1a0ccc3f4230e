#!/usr/bin/env bash
# Trains Stable Diffusion 2's U-Net on this machine's GPU in Tidemill and in diffusers, and prints img/s of each.
#
#   make wheel                             # where there is a network; diffusers' wheel may lie beside ours
#   bash benches/gpu.sh target/wheels      # on the GPU machine, which has PyTorch and transformers
#
# Nothing is fetched. What follows the folder goes to `python -m benches.gpu`: --sides, --pixels and --batch say what
# to measure, --limit-s how many seconds all sides may take (460, from the start of this script), --side-limit-s when
# one has failed (240).
# gpu.md and gpu.json in target/bench/gpu are written after each side. Further calls add to them, and find the data
# there, while device and versions are the same, such as for torch.compile alone:
#
#   bash benches/gpu.sh target/wheels --sides "diffusers, torch.compile"
#   bash benches/gpu.sh target/wheels --sides "Tidemill, recorded" --pixels 512 --batch 64
#
# Ends with 1 if a side has failed; its row says why.
set -euo pipefail
started=$(date +%s)
cd "$(dirname "$0")/.."
wheels=${1:-target/wheels}
site=target/gpu-site
python3 -m pip install --quiet --no-index --no-deps --upgrade --target "$site" "$wheels"/*.whl
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
exec python3 -m benches.gpu --force --started "$started" "${@:2}"
