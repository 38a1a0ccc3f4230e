#!/usr/bin/env bash
# Trains Stable Diffusion 2's U-Net on this machine's GPU in Tidemill and in diffusers, and prints img/s of each.
#
#   make wheel                             # where there is a network; diffusers' wheel may lie beside ours
#   bash benches/gpu.sh target/wheels      # on the GPU machine, which has PyTorch and transformers
#
# Nothing is fetched. What follows the folder goes to `python -m benches.gpu`, such as --sides or --batch.
set -euo pipefail
cd "$(dirname "$0")/.."
wheels=${1:-target/wheels}
site=target/gpu-site
python3 -m pip install --quiet --no-index --no-deps --upgrade --target "$site" "$wheels"/*.whl
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
exec python3 -m benches.gpu --force "${@:2}"
