#!/usr/bin/env bash
# install_packages.sh VENV [ARGS]: `uv pip install ARGS` into a virtual environment. uv installs
# these packages in a third of pip's time. Bytecode is compiled now, because some environments never
# write it later (PYTHONDONTWRITEBYTECODE). uv does not read pip's configuration, so a mirror that is
# configured for pip is passed on.
set -euo pipefail
venv=$1
shift

"$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.9
index=$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)
index=${PIP_INDEX_URL:-$index}
[[ -z $index ]] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
"$venv/bin/python" -m uv pip install --quiet --compile-bytecode --python "$venv/bin/python" "$@"
