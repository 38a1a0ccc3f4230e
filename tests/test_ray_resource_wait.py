"""Waiting for resources that a cluster lacks is reported, and can be stopped."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import ray
import tidemill
from helpers import online, ray_cluster, training
from tidemill import _native
from tidemill.ray import resource_wait
from tidemill.ray.train.graceful_stop import StopSignal, WorkerLossCallback, watch_stop_signal
from tidemill.run_file import to_arguments


@pytest.fixture(scope="module")
def address():
    with ray_cluster.start_cluster(2) as address:
        yield address


@contextmanager
def running(verb, output, **settings):
    """A verb in a process of its own, which is killed after the block."""
    path, given = to_arguments(
        {**training.SETTINGS, "engine.kind": "ray", **settings, "output": str(output)}, {}
    )
    sets = [part for setting in given for part in ("--set", setting)]
    command = [sys.executable, "-m", "tidemill", verb, path, *sets, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()


@pytest.mark.timeout(100)
def test_training_without_workers_stops_at_once(address, dataset, tmp_path):
    training.link_dataset(tmp_path, dataset)
    settings = {"engine.ray.address": address, "engine.train": {"workers": 2, "cpus": 4}}
    with running("train", tmp_path, **settings) as process:
        while not ray_cluster.find_ray_processes("TrainController"):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        out, err = process.communicate(timeout=60)
    assert time.monotonic() - start < 20
    assert process.returncode == 1, err
    assert "0 of 10 steps" in json.loads(out.splitlines()[-1])["error"]["message"], out


# A driver with short intervals between checks and warnings.
FAST_DRIVER = """
import runpy, sys
from tidemill.ray import resource_wait
resource_wait.FIRST_WARNING_S, resource_wait.CHECK_INTERVAL_S = 1.0, 0.2
runpy.run_module(sys.argv[1], run_name="__main__")
"""


@contextmanager
def driver(address, module, plan, lines=(), **options):
    """A driver as a verb starts it, which has received a plan."""
    command = [sys.executable, "-c", FAST_DRIVER, module]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    process = subprocess.Popen(command, text=True, **pipes)
    try:
        cluster = {"address": address, "env": {}}
        for line in (json.dumps({"cluster": cluster, "lines": len(lines), **plan}), *lines):
            process.stdin.write(line + "\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait()


def read_line_with(stream, word):
    """The first line that contains a word, from there on.

    The time limit of the test ends the wait.
    """
    line = next(line for line in stream if word in line)
    return line[line.index(word) :].rstrip()


def pool(fewest, most, cpus, gpus=0, accelerator=None):
    return {"fewest": fewest, "most": most, "cpus": cpus, "gpus": gpus, "accelerator": accelerator}


@pytest.mark.timeout(100)
@pytest.mark.parametrize("terminal", [False, True])
def test_preprocessing_reports_resources_it_waits_for(terminal, address, pairs_run, tmp_path):
    resolved = tidemill.resolve(pairs_run, output=str(tmp_path))
    arguments = to_arguments(resolved, {})
    plan = {"ticket": _native.ticket(*arguments), "prepare": pool(0, 0, 64)}
    plan["encode"] = pool(2, 3, 1, 1, "A10G")
    ours, theirs = pty.openpty()
    options = {"stderr": theirs} if terminal else {}
    with driver(
        address, "tidemill.ray.preprocess.driver", plan, _native.units(*arguments), **options
    ) as process:
        log = process.stdout if terminal else process.stderr
        lines = {read_line_with(log, "waiting for"), read_line_with(log, "waiting for")}
    os.close(ours)
    os.close(theirs)
    has = "the cluster has CPU 2 (2 free), no GPU"
    assert f"waiting for 1 prepare task with CPU 64; {has}" in lines
    assert f"waiting for 2 encoders with CPU 1, GPU 1, accelerator A10G; {has}" in lines


@pytest.mark.timeout(100)
def test_training_reports_resources_it_waits_for(address, dataset, tmp_path):
    training.link_dataset(tmp_path, dataset)
    run = json.loads(tidemill.resolve({**training.SETTINGS, "output": str(tmp_path)}).text)
    plan = {"run": run, "mode": "offline", "train": pool(3, 4, 1, 0, "A100")}
    with driver(address, "tidemill.ray.train.driver", plan) as process:
        log = read_line_with(process.stderr, "waiting for")
    assert log.startswith("waiting for 3 workers with CPU 1, accelerator A100; the cluster has CPU 2 (")


@pytest.mark.timeout(100)
def test_online_training_reports_encoders_it_waits_for(address, scenes, tmp_path):
    encode = {"engine.kind": "ray", "engine.encode.workers": "1..4", "engine.encode.gpus": 2}
    settings = {**training.SETTINGS, **online.SETTINGS, **encode, "source.uri": scenes}
    settings["output"] = str(tmp_path)
    plan = {"run": json.loads(tidemill.resolve(settings).text), "mode": "online", "train": pool(1, 1, 0.5)}
    with driver(address, "tidemill.ray.train.driver", plan) as process:
        log = read_line_with(process.stderr, "waiting for 1 encoder")
    assert log.startswith("waiting for 1 encoder with CPU 1, GPU 2; the cluster has CPU 2 (")


def test_resource_warnings_are_repeated_at_intervals(caplog, monkeypatch):
    monkeypatch.setattr(resource_wait, "_describe_cluster", lambda: "little")
    # Waiting encoders by second.
    missing = {0: 0, 10: 2, 39: 2, 40: 1, 60: 1, 339: 1, 340: 1, 350: 0, 360: 0}
    looks = iter(missing.values())
    resources = resource_wait.WorkerResources(1, 0.5)
    demand = resource_wait.ResourceDemand("encoder", resources, lambda: next(looks))
    monitor = resource_wait.DemandMonitor(demand)
    messages = []
    caplog.set_level("INFO", "tidemill.ray")
    for second in missing:
        monitor.check(second)
        messages += [(second, record.message) for record in caplog.records]
        caplog.clear()
    log = "waiting for 1 encoder with CPU 1, GPU 0.5; the cluster has little"
    assert messages == [(40, log), (340, log), (350, "the cluster has room for the encoders now")]


def test_stop_request_returns_whether_there_are_workers(address):
    stop = StopSignal.options(name="stop-of-this-test").remote()
    assert not ray.get(stop.request.remote())
    ray.get(stop.worker_started.remote())
    with watch_stop_signal(stop) as event:
        assert event.wait(10)
        assert ray.get(stop.request.remote())
        WorkerLossCallback("stop-of-this-test").after_exception(None, {})
        assert not ray.get(stop.request.remote())
    WorkerLossCallback("stop-that-has-gone").after_exception(None, {})
