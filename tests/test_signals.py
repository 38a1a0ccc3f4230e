"""Signals during training do no harm, such as those of a profiler."""

import json
import subprocess
import sys

from helpers import training

# Like a sampling profiler: a signal every two milliseconds, and a handler that does nothing.
SAMPLED = """
import json, signal, sys
import tidemill

signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
result = tidemill.train(json.loads(sys.argv[1]))
signal.setitimer(signal.ITIMER_REAL, 0)
assert result["finished"], result
"""


def test_training_survives_frequent_signals(dataset, tmp_path):
    """A signal handler must not overwrite the memory of oneDNN's f32 kernels.

    For AVX2 such a kernel keeps the stack pointer in its own memory.
    """
    training.link_dataset(tmp_path, dataset)
    few = {"train.global_batch": 14, "train.micro_batch": 7, **training.phase(30)}
    run = json.dumps({**training.SETTINGS, **few, "output": str(tmp_path)})
    command, options = [sys.executable, "-c", SAMPLED, run], {"capture_output": True, "text": True}
    done = subprocess.run(command, env=training.environment(), timeout=240, **options)
    assert done.returncode == 0, done.stderr
