#!/usr/bin/env bash
# The whole way once: draw captioned scenes, encode them, train, sample, score, export. Ends with
# runs/quickstart/summary.json. The time limit keeps a machine that cannot do it from going on.
set -euo pipefail
cd "$(dirname "$0")/.."

tidemill=target/release/tidemill
started=$SECONDS
rm -rf runs/quickstart
"$tidemill" synth runs/quickstart/data --rows "${ROWS:-10000}" --files 4 --seed 0
timeout 20m "$tidemill" run examples/quickstart.toml
echo "quickstart: $((SECONDS - started)) s in all; look at runs/quickstart/samples/grid.png"
