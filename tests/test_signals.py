"""Signals while a run computes: handlers of others, such as a profiler's or Python's own, do no
harm.
"""

import json
import subprocess
import sys

import ranks

# As a profiler that samples: a signal every two milliseconds, and a handler that does nothing.
SAMPLED = """
import json, signal, sys
import tidemill

signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
result = tidemill.train(json.loads(sys.argv[1]))
signal.setitimer(signal.ITIMER_REAL, 0)
assert result["finished"], result
"""


def test_a_run_is_sampled_and_ends_well(dataset, tmp_path):
    """In f32: a kernel of oneDNN's for CPUs with AVX2 has the stack pointer in memory of its own."""
    ranks.link(tmp_path, dataset)
    few = {"train.global_batch": 14, "train.micro_batch": 7, "train.phase": [{"resolution": 64, "steps": 30}]}
    run = json.dumps({**ranks.SETTINGS, **few, "output": str(tmp_path)})
    command, options = [sys.executable, "-c", SAMPLED, run], {"capture_output": True, "text": True}
    done = subprocess.run(command, env=ranks.environment(), timeout=240, **options)
    assert done.returncode == 0, done.stderr
