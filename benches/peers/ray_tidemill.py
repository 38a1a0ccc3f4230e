"""Ours, on one of the engines: python -m benches.peers.ray_tidemill local|ray <pairs> <output>"""

import json
import subprocess
import sys
import time

from benches.runner import ROOT, TIDEMILL, cores

kind, folder, output = sys.argv[1:4]
settings = {
    "source.uri": f"{folder}/*.parquet",
    "source.columns": '{ image = "jpg", caption = "caption", key = "key" }',
    "source.rows_per_unit": 1000,
    "prepare.resolutions": [64],
    "models.path": str(ROOT / "assets"),
    "engine.kind": kind,
    "engine.device": "cpu",
    "engine.ray.address": "local",
    # Local: one encoder that uses all cores. Ray: an encoder for each core, which has it for itself.
    "engine.encode.workers": cores() if kind == "ray" else 1,
    "engine.encode.cpus": 0.5,
    "engine.prepare.cpus": 0.5,
    "output": output,
}


def toml(value: object) -> str:
    return value if isinstance(value, str) and value.startswith("{") else json.dumps(value)


arguments = [part for key, value in settings.items() for part in ("--set", f"{key}={toml(value)}")]
start = time.perf_counter()
done = subprocess.run(
    [str(TIDEMILL), "preprocess", "/dev/null", *arguments, "--json", "--quiet"],
    stdout=subprocess.PIPE,
    text=True,
    check=True,
)
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "rows": json.loads(done.stdout.splitlines()[-1])["rows"]}))
