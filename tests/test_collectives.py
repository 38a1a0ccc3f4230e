"""Rust calls collectives on the process group that Python made, by its name, under torchrun."""

import json
import subprocess
import sys

WORKER = """
import json, os, sys
import torch.distributed as dist
from tidemill import _native

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
probed = _native.probe_group(dist.group.WORLD.group_name, rank, world)
with open(os.path.join(sys.argv[1], f"{rank}.json"), "w") as file:
    json.dump(probed, file)
dist.destroy_process_group()
"""


def test_two_gloo_workers_reduce_from_rust(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    subprocess.run([*command, str(script), str(tmp_path)], check=True, timeout=120)
    total = [3.0 * i for i in range(8)]
    for rank in range(2):
        summed, part, gathered = json.loads((tmp_path / f"{rank}.json").read_text())
        assert summed == total
        assert part == total[4 * rank : 4 * rank + 4]
        assert gathered == total


def test_an_unknown_group_is_an_error_not_a_crash():
    code = "from tidemill import _native\n_native.probe_group('nobody', 0, 2)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "TidemillError" in done.stderr
    assert "nobody" in done.stderr
