"""What the tests of the online mode share: runs of it, with workers of `tidemill train`."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import ranks

STEPS = 24
SETTINGS = {
    "train.global_batch": 14,
    "train.micro_batch": 5,
    "train.phase": [{"resolution": 64, "steps": STEPS}],
    "prepare.crop": "random",
    "online.window": 2,
    "engine.encode.threads": 1,
}


class Training:
    """`tidemill train --mode online` with workers."""

    def __init__(self, output, scenes, workers, **settings):
        output.mkdir(exist_ok=True)
        self.output = output
        settings = {**SETTINGS, "source.uri": scenes, **settings}
        arguments = ranks.arguments(output, settings)
        self.process = subprocess.Popen(
            [sys.executable, *arguments, "--mode", "online", "--workers", str(workers), "--json"],
            env=ranks.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = []
        self.listener = threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True)
        self.listener.start()

    def kill_one(self, rng, at):
        """Kills a worker once there are metrics of step `at`."""
        while not (self.output / "metrics.jsonl").exists() or len(ranks.losses(self.output)) < at:
            assert self.process.poll() is None, self.said
            time.sleep(0.02)
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as children:
            os.kill(int(rng.choice(children.read().split())), signal.SIGKILL)

    def end(self):
        """The result."""
        self.process.wait(timeout=300)
        self.listener.join(timeout=10)
        assert self.process.returncode == 0, self.said
        return json.loads(self.process.stdout.read().splitlines()[-1])


def assert_same(a, b):
    """Two runs end with the same state, and have seen the same rows."""
    for name, values in ranks.state(a, STEPS).items():
        assert np.array_equal(values, ranks.state(b, STEPS)[name]), name
    assert ranks.losses(a) == ranks.losses(b)
