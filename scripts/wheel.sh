#!/usr/bin/env bash
# Packs python/tidemill, with the module that `make setup` has built, as a wheel in target/wheels/.
# `maturin build` would compile arrow and parquet once more, for another set of features.
set -euo pipefail
cd "$(dirname "$0")/.."

content=target/wheel
rm -rf $content target/wheels
mkdir -p $content target/wheels
maturin pep517 write-dist-info --metadata-directory $content --interpreter .venv/bin/python > /dev/null
tar -C python --exclude __pycache__ -cf - tidemill | tar -C $content -xf -
.venv/bin/python -m wheel pack --dest-dir target/wheels $content
