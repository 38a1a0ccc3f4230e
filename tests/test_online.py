"""Workers that train on pairs as they come: whatever happens, the rows are those that would have come."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import ranks
import tidemill

STEPS = 40
SETTINGS = {
    "train.global_batch": 14,
    "train.micro_batch": 5,
    "train.phase": [{"resolution": 64, "steps": STEPS}],
    "prepare.crop": "random",
    "online.window": 2,
    "engine.encode.threads": 1,
}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Pairs of eight units."""
    folder = tmp_path_factory.mktemp("scenes")
    tidemill.main(["synth", str(folder), "--rows", "120", "--files", "8", "-q"])
    return f"{folder}/*.parquet"


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


@pytest.fixture(scope="module")
def undisturbed(scenes, tmp_path_factory):
    output = tmp_path_factory.mktemp("undisturbed")
    result = Training(output, scenes, 2).end()
    assert result["steps"] == STEPS
    assert not (output / "dataset").exists()
    return output


def test_a_killed_worker_costs_no_row(undisturbed, scenes, tmp_path, rng):
    run = Training(tmp_path, scenes, 2)
    run.kill_one(rng, at=rng.randrange(6, 30))
    result = run.end()
    assert len(result["faults"]) == 1, run.said
    for name, values in ranks.state(tmp_path, STEPS).items():
        assert np.array_equal(values, ranks.state(undisturbed, STEPS)[name]), name
    assert ranks.losses(tmp_path) == ranks.losses(undisturbed)


def test_other_numbers_of_workers_go_on(scenes, tmp_path):
    """What each rank had before it is dealt out anew; the lanes' own tests count the rows."""
    for workers, steps in [(2, 7), (3, 15), (1, 20)]:
        phase = [{"resolution": 64, "steps": steps}]
        result = Training(tmp_path, scenes, workers, **{"train.phase": phase}).end()
        assert result["steps"] == steps
        commit = json.loads((tmp_path / f"checkpoints/step-{steps:08}/commit.json").read_text())
        assert len(commit["progress"]["stream"]["lanes"]) == workers
    assert np.isfinite(ranks.losses(tmp_path)).all()
