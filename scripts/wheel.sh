#!/usr/bin/env bash
# Packs what `make setup` has built, into target/wheels: python/tidemill as a wheel, the source as an
# sdist, the program alone as a tar. `maturin build` would compile arrow and parquet once more, for
# another set of features.
set -euo pipefail
cd "$(dirname "$0")/.."

out=target/wheels
rm -rf "$out" target/pack
mkdir -p "$out" target/pack/wheel target/pack/raw

# The wheel. libtorch comes from the torch package at run time, so the path to this checkout's is removed.
maturin pep517 write-dist-info --metadata-directory target/pack/wheel --interpreter .venv/bin/python > /dev/null
tar -C python --exclude __pycache__ --exclude assets -cf - tidemill | tar -C target/pack/wheel -xf -
target/release/tidemill synth target/pack/pairs --rows 4000 --files 1 --quiet
.venv/bin/python scripts/pack_assets.py target/pack/pairs target/pack/wheel/tidemill/assets
patchelf --remove-rpath target/pack/wheel/tidemill/_native.abi3.so
.venv/bin/python -m wheel pack --dest-dir target/pack/raw target/pack/wheel
# Tags it by the symbols that it needs of glibc and libstdc++, and fails if it needs another library.
.venv/bin/python -m auditwheel repair --plat auto --only-plat --strip --wheel-dir "$out" \
  --exclude libtorch_cpu.so --exclude libc10.so target/pack/raw/*.whl
.venv/bin/python scripts/compress_wheel.py "$out"/*.whl

# The sdist.
maturin sdist --out "$out" > target/pack/sdist.log 2>&1 || { cat target/pack/sdist.log; exit 1; }

# The program. Its libtorch is found beside it, or by LD_LIBRARY_PATH.
version=$(basename "$out"/*.tar.gz .tar.gz)
folder=$version-$(uname -m)-linux
mkdir -p "target/pack/$folder"
cp target/release/tidemill README.md LICENSE examples/quickstart.toml "target/pack/$folder/"
cp -r assets "target/pack/$folder/"
patchelf --set-rpath '$ORIGIN/libtorch/lib' "target/pack/$folder/tidemill"
tar -C target/pack -czf "$out/$folder.tar.gz" "$folder"
ls -l "$out"
