"""What a cluster has no room for: it is said what is waited for, and the wait can be ended."""

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import ranks
import ray
from tidemill.run_file import arguments_of


@pytest.fixture(scope="module")
def address():
    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield context.address_info["gcs_address"]
    ray.shutdown()


@contextmanager
def running(verb, output, **settings):
    """A verb in a process of its own, which ends with the test."""
    path, given = arguments_of(
        {**ranks.SETTINGS, "engine.kind": "ray", **settings, "output": str(output)}, {}
    )
    sets = [part for setting in given for part in ("--set", setting)]
    command = [sys.executable, "-m", "tidemill", verb, path, *sets, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()


@pytest.mark.timeout(100)
def test_training_that_has_not_begun_is_stopped_at_once(address, dataset, tmp_path):
    ranks.link(tmp_path, dataset)
    settings = {"engine.ray.address": address, "engine.train": {"workers": 2, "cpus": 4}}
    with running("train", tmp_path, **settings) as process:
        while not ranks.ray_processes("TrainController"):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        out, err = process.communicate(timeout=60)
    assert time.monotonic() - start < 20
    assert process.returncode == 1, err
    assert "0 of 10 steps" in json.loads(out.splitlines()[-1])["error"]["message"], out
