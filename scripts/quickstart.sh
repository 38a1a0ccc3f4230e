#!/usr/bin/env bash
# The quickstart: draws captioned scenes, encodes them, trains, samples, scores and exports. The
# result is runs/quickstart/summary.json. The time limit ends it on machines that are too slow.
# Arguments go to `tidemill run`.
set -euo pipefail
cd "$(dirname "$0")/.."

tidemill=target/release/tidemill
started=$SECONDS
rm -rf runs/quickstart
"$tidemill" synth runs/quickstart/data --rows "${ROWS:-10000}" --files 4 --seed 0
timeout 20m "$tidemill" run examples/quickstart.toml "$@"
echo "quickstart: $((SECONDS - started)) s in all; see runs/quickstart/report.html and samples/grid.png"
