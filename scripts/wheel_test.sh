#!/usr/bin/env bash
# Installs the wheel into virtual environments that have nothing else, for each Python that is there, and
# uses it as a newcomer would: the program, the module, a small run. Then the program of the tar, beside
# the same torch. The checkout is out of reach.
set -euo pipefail
cd "$(dirname "$0")/.."

limit=25000000
wheel=$(realpath target/wheels/*.whl)
program=$(realpath target/wheels/*-linux.tar.gz)
size=$(stat -c %s "$wheel")
((size < limit)) || { echo "$wheel has $size bytes, more than $limit"; exit 1; }
[[ $wheel == *manylinux* ]] || { echo "$wheel is not tagged manylinux"; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

find_python() {
  local candidate
  for candidate in "$(command -v "python$1" || true)" ~/.pyenv/versions/"$1".*/bin/python; do
    if [[ -x $candidate ]] && "$candidate" -c 'import venv' 2> /dev/null; then
      echo "$candidate"
      return
    fi
  done
}

use_program() {
  tidemill --version
  tidemill synth pairs --rows 60 --files 1 --quiet
  tidemill init pairs --models "$1"
  tidemill run run.toml --quiet --set train.phase.0.steps=2 \
    --set train.global_batch=4 --set train.micro_batch=4 \
    --set 'sample.prompts=["a large red circle in the center"]' --set sample.steps=2
  test -s runs/pairs/report.html
  rm -rf pairs run.toml runs
}

for version in ${PYTHONS:-3.11 3.12 3.13}; do
  python=$(find_python "$version")
  [[ -n $python ]] || { echo "Python $version: not on this machine"; continue; }
  echo "Python $version: $("$python" --version)"
  mkdir "$work/$version"
  "$python" -m venv "$work/$version/venv"
  bash scripts/install_packages.sh "$work/$version/venv" "$wheel"
  (
    cd "$work/$version"
    # Nothing of the caller's environment helps.
    unset PYTHONPATH LIBTORCH LD_LIBRARY_PATH TIDEMILL_PYTHON
    export PATH="$PWD/venv/bin:/usr/bin:/bin"
    use_program "$(python -c 'import tidemill; print(tidemill.ASSETS)')"
    python - << 'PYTHON'
import tidemill
import torch

tidemill.synth("pairs", rows=40, files=1)
columns = {"image": "jpg", "caption": "caption"}
source = {"uri": "pairs/*.parquet", "columns": columns}
tidemill.preprocess({"source": source, "prepare": {"resolutions": [64]}, "models": {"path": tidemill.ASSETS}})
batch = next(tidemill.Stream("runs/run/dataset", resolution=64, global_batch=4))
assert torch.from_dlpack(batch.latents).shape == (4, 8, 8, 8)
PYTHON
  )
  torch=$(realpath "$work/$version"/venv/lib/python*/site-packages/torch)
  mkdir "$work/$version/program"
  tar -C "$work/$version/program" --strip-components 1 -xzf "$program"
  ln -s "$torch" "$work/$version/program/libtorch"
  (
    cd "$work/$version/program"
    unset LIBTORCH LD_LIBRARY_PATH TIDEMILL_PYTHON
    export PATH="$PWD:/usr/bin:/bin"
    use_program assets
  )
  rm -rf "${work:?}/$version"
done
echo "wheel-test: passed"
