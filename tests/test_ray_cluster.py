"""A cluster of unlike nodes: stages land where they belong, and any part of it may die."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path

import online
import pairs
import pytest
import ranks
import ray
import tidemill
import tidemill.ray
from ray.cluster_utils import Cluster
from ray.train import ScalingConfig

# How Ray calls the resource that says which GPU a node has.
KIND = "accelerator_type:"
# So many that a node is noticed long before the end.
STEPS_OF_NODES = 600


class Nodes:
    """A head, and nodes with GPUs that are there by name only."""

    def __init__(self):
        self.joined = []
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        self.a10g = self.add("A10G")
        self.a100 = self.add("A100")
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="error")

    def add(self, accelerator):
        resources = {KIND + accelerator: 1}
        return self.cluster.add_node(num_cpus=2, num_gpus=1, resources=resources)

    def join(self, accelerator):
        """As `add`, which works on the main thread only."""
        command = [Path(sys.executable).with_name("ray"), "start", "--block", "--num-cpus=2", "--num-gpus=1"]
        resources = json.dumps({KIND + accelerator: 1})
        place = [f"--address={self.cluster.address}", "--object-store-memory=157286400"]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.joined.append(subprocess.Popen([*command, *place, f"--resources={resources}"], **silent))

    def end(self):
        ray.shutdown()
        try:
            for node in self.joined:
                node.terminate()
                node.wait(timeout=60)
        finally:
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
    assert places("Encode") == {"A10G"}


@pytest.mark.faults
def test_online_trainers_and_encoders_are_where_they_belong(nodes, trained_online, scenes, tmp_path):
    """Trainers on A100 are fed by encoders on A10G.

    Their only node is lost on the way, and another joins.
    """
    settings = {**ranks.SETTINGS, **online.SETTINGS, **on(nodes, tmp_path), "source.uri": scenes}
    trainers = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5, "accelerator_type:A100": 0.1})
    trainer = tidemill.ray.Trainer(tidemill.resolve(settings), mode="online", scaling_config=trainers)

    def exchange():
        nodes.cluster.remove_node(nodes.a10g, allow_graceful=False)
        nodes.join("A10G")

    with ranks.at_step(tmp_path, 8, exchange):
        result = trainer.fit()
    assert nodes.a10g not in nodes.cluster.worker_nodes
    assert result.return_value["finished"]
    assert (places("EncoderActor"), places("TrainWorker")) == ({"A10G"}, {"A100"})
    online.assert_same(tmp_path, trained_online)
    ranks.tell_pause("online, the only node with encoders, for which another joins", tmp_path)


@pytest.mark.faults
def test_training_follows_the_nodes_that_there_are(nodes, dataset, tmp_path, monkeypatch):
    """A node with one of two workers is lost, and none comes in its place; later one joins."""
    # Ray Train waits so long for one.
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "15")
    ranks.link(tmp_path, dataset)
    phase = [{"resolution": 64, "steps": STEPS_OF_NODES}]
    settings = {**ranks.SETTINGS, "train.phase": phase, "checkpoint.keep": 100}
    settings |= {"train.global_batch": 14, "train.micro_batch": 5, "checkpoint.every": 20}
    run = tidemill.resolve({**settings, "output": str(tmp_path)})
    scaling = ScalingConfig(
        num_workers=(1, 2), resources_per_worker={"CPU": 2}, elastic_resize_monitor_interval_s=5
    )

    def lose_one():
        nodes.cluster.remove_node(nodes.a100, allow_graceful=False)

    def gain_one():
        assert workers_of(tmp_path)[-1] == 1
        nodes.join("A100")

    with ranks.at_step(tmp_path, 30, lose_one), ranks.at_step(tmp_path, 100, gain_one):
        result = tidemill.ray.Trainer(run, scaling_config=scaling).fit()
    assert nodes.a100 not in nodes.cluster.worker_nodes
    assert result.return_value["steps"] == STEPS_OF_NODES
    assert len(ranks.losses(tmp_path)) == STEPS_OF_NODES
    assert [workers for workers, _ in groupby(workers_of(tmp_path))] == [2, 1, 2]
    ranks.tell_pause("a node with one of two workers", tmp_path)


def workers_of(output):
    """How many workers wrote each checkpoint."""
    commits = sorted(output.glob("checkpoints/*/commit.json"))
    return [len(json.loads(commit.read_text())["shards"]) for commit in commits]


def places(actors):
    """On which GPUs' nodes there were actors of that name."""
    kinds = {
        node["NodeID"]: [name.removeprefix(KIND) for name in node["Resources"] if name.startswith(KIND)]
        for node in ray.nodes()
    }
    found = [actor for actor in ray._private.state.actors().values() if actors in actor["ActorClassName"]]
    assert found
    # An actor whose node is gone is nowhere.
    return {kind for actor in found for kind in kinds.get(actor["Address"]["NodeID"], [])}


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
    running = ranks.Running("preprocess", pairs_run, **on(nodes, tmp_path))
    running.commits(tmp_path, 2)
    began = time.monotonic()
    fault(nodes)
    code, _, said = running.end(seconds=250)
    assert code == 0, said
    print(f"{fault.__name__}: done {time.monotonic() - began:.1f} s later")
    pairs.assert_same(tmp_path, encoded_pairs[0])
