"""A cluster of unlike nodes: stages land where they belong, and any part of it may die."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pairs
import pytest
import ray
import tidemill
from ray.cluster_utils import Cluster
from tidemill.run_file import arguments_of


class Nodes:
    """A head, and nodes with GPUs that are there by name only."""

    def __init__(self):
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        self.a10g = self.add("A10G")
        self.a100 = self.add("A100")
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="error")

    def add(self, accelerator):
        resources = {f"accelerator_type:{accelerator}": 1}
        return self.cluster.add_node(num_cpus=2, num_gpus=1, resources=resources)

    def end(self):
        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture
def nodes():
    nodes = Nodes()
    yield nodes
    nodes.end()


def on(nodes, output):
    return {
        "output": str(output),
        "engine.kind": "ray",
        "engine.ray.address": nodes.cluster.address,
        "engine.encode.workers": "1..2",
        "engine.encode.gpus": 1,
        "engine.encode.accelerator": "A10G",
    }


def test_encoders_are_on_their_gpus_only(nodes, pairs_run, encoded_pairs, tmp_path):
    nodes.add("A10G")
    tidemill.preprocess(pairs_run, **on(nodes, tmp_path))
    pairs.assert_same(tmp_path, encoded_pairs[0])
    encoders = [
        actor for actor in ray._private.state.actors().values() if "Encode" in actor["ActorClassName"]
    ]
    kinds = {
        node["NodeID"]: [name for name in node["Resources"] if name.startswith("accelerator_type:")]
        for node in ray.nodes()
    }
    assert encoders
    assert {kind for actor in encoders for kind in kinds[actor["Address"]["NodeID"]]} == {
        "accelerator_type:A10G"
    }


class Running:
    """`tidemill preprocess` in a process of its own."""

    def __init__(self, settings, **overrides):
        path, given = arguments_of(settings, overrides)
        arguments = [argument for setting in given for argument in ("--set", setting)]
        self.output = Path(overrides["output"])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidemill", "preprocess", path, *arguments, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def commits(self, least):
        """Waits until so many units are committed."""
        while len(list(self.output.glob("dataset/commits/*"))) < least:
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.02)

    def end(self):
        out, err = self.process.communicate(timeout=250)
        assert self.process.returncode == 0, err
        return json.loads(out.splitlines()[-1])


def kill_an_encoder(nodes):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{pid}/cmdline").read_text().startswith("ray::MapWorker(MapBatches(Encode))"):
                os.kill(int(pid), signal.SIGKILL)
                return
        except OSError:
            pass
    raise AssertionError("there is no encoder")


def lose_a_node(nodes):
    """With all that runs on it, which another takes over."""
    nodes.add("A10G")
    nodes.cluster.remove_node(nodes.a10g, allow_graceful=False)


def gain_a_node(nodes):
    nodes.add("A10G")


@pytest.mark.faults
@pytest.mark.parametrize("fault", [kill_an_encoder, lose_a_node, gain_a_node])
def test_preprocessing_survives(fault, nodes, pairs_run, encoded_pairs, tmp_path):
    running = Running(pairs_run, **on(nodes, tmp_path))
    running.commits(2)
    began = time.monotonic()
    fault(nodes)
    running.end()
    print(f"{fault.__name__}: done {time.monotonic() - began:.1f} s later")
    pairs.assert_same(tmp_path, encoded_pairs[0])
