"""A cluster with different GPUs: stages run on their nodes, and survive the loss of any part."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path

import pytest
import ray
import tidemill
import tidemill.ray
from helpers import online, pairs, processes, ray_cluster, run_output, training
from ray.cluster_utils import Cluster
from ray.train import ScalingConfig

# Prefix of the resource by which Ray marks a node's kind of GPU.
ACCELERATOR_PREFIX = "accelerator_type:"
# Enough steps to notice a joining node long before the end.
STEPS = 600


class UnequalNodes:
    """A head node, and nodes with nominal GPUs."""

    def __init__(self):
        self.joined = []
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        self.a10g = self.add("A10G")
        self.a100 = self.add("A100")
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="error")

    def add(self, accelerator):
        resources = {ACCELERATOR_PREFIX + accelerator: 1}
        return self.cluster.add_node(num_cpus=2, num_gpus=1, resources=resources)

    def join(self, accelerator):
        """Adds a node from any thread; `add` works only on the main thread."""
        command = [Path(sys.executable).with_name("ray"), "start", "--block", "--num-cpus=2", "--num-gpus=1"]
        resources = json.dumps({ACCELERATOR_PREFIX + accelerator: 1})
        place = [f"--address={self.cluster.address}", "--object-store-memory=157286400"]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.joined.append(subprocess.Popen([*command, *place, f"--resources={resources}"], **silent))

    def shutdown(self):
        ray.shutdown()
        try:
            for node in self.joined:
                node.terminate()
                node.wait(timeout=60)
        finally:
            self.cluster.shutdown()


@pytest.fixture
def nodes():
    nodes = UnequalNodes()
    yield nodes
    nodes.shutdown()


def on(nodes, output):
    return {
        "output": str(output),
        "engine.kind": "ray",
        "engine.ray.address": nodes.cluster.address,
        "engine.encode.workers": "1..2",
        "engine.encode.gpus": 1,
        "engine.encode.accelerator": "A10G",
    }


@pytest.mark.slow
def test_encoders_run_only_on_their_accelerator(nodes, pairs_run, encoded_pairs, tmp_path):
    nodes.add("A10G")
    tidemill.preprocess(pairs_run, **on(nodes, tmp_path))
    pairs.assert_same_dataset(tmp_path, encoded_pairs[0])
    assert accelerators_of("Encode") == {"A10G"}


@pytest.mark.faults
def test_online_trainers_and_encoders_run_on_their_accelerators(nodes, trained_online, scenes, tmp_path):
    """Encoders on A10G feed trainers on A100. The only A10G node is lost, and another joins."""
    settings = {**training.SETTINGS, **online.SETTINGS, **on(nodes, tmp_path), "source.uri": scenes}
    trainers = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5, "accelerator_type:A100": 0.1})
    trainer = tidemill.ray.Trainer(tidemill.resolve(settings), mode="online", scaling_config=trainers)

    def exchange():
        nodes.cluster.remove_node(nodes.a10g, allow_graceful=False)
        nodes.join("A10G")

    with processes.act_at_step(tmp_path, 8, exchange):
        result = trainer.fit()
    assert nodes.a10g not in nodes.cluster.worker_nodes
    assert result.return_value["finished"]
    assert (accelerators_of("EncoderActor"), accelerators_of("TrainWorker")) == ({"A10G"}, {"A100"})
    online.assert_same_training(tmp_path, trained_online)
    run_output.print_longest_pause("online, the only node with encoders, for which another joins", tmp_path)


@pytest.mark.faults
def test_training_scales_with_lost_and_joining_nodes(nodes, dataset, tmp_path, monkeypatch):
    """The node of one of two workers is lost without a replacement; a node joins later."""
    # How long Ray Train waits for a replacement.
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "15")
    training.link_dataset(tmp_path, dataset)
    phase = training.phase(STEPS)
    settings = {**training.SETTINGS, **phase, "checkpoint.keep": 100}
    settings |= {**training.UNEVEN_BATCH, "checkpoint.every": 20}
    run = tidemill.resolve({**settings, "output": str(tmp_path)})
    scaling = ScalingConfig(
        num_workers=(1, 2), resources_per_worker={"CPU": 2}, elastic_resize_monitor_interval_s=5
    )

    def lose_one():
        nodes.cluster.remove_node(nodes.a100, allow_graceful=False)

    def gain_one():
        assert workers_of(tmp_path)[-1] == 1
        nodes.join("A100")

    with processes.act_at_step(tmp_path, 30, lose_one), processes.act_at_step(tmp_path, 100, gain_one):
        result = tidemill.ray.Trainer(run, scaling_config=scaling).fit()
    assert nodes.a100 not in nodes.cluster.worker_nodes
    assert result.return_value["steps"] == STEPS
    assert len(run_output.read_losses(tmp_path)) == STEPS
    assert [workers for workers, _ in groupby(workers_of(tmp_path))] == [2, 1, 2]
    run_output.print_longest_pause("a node with one of two workers", tmp_path)


def workers_of(output):
    """The number of workers that wrote each checkpoint."""
    commits = sorted(output.glob("checkpoints/*/commit.json"))
    return [len(json.loads(commit.read_text())["shards"]) for commit in commits]


def accelerators_of(actors):
    """The accelerators of the nodes on which actors of that class have run."""
    kinds = {
        node["NodeID"]: [
            name.removeprefix(ACCELERATOR_PREFIX)
            for name in node["Resources"]
            if name.startswith(ACCELERATOR_PREFIX)
        ]
        for node in ray.nodes()
    }
    found = [actor for actor in ray._private.state.actors().values() if actors in actor["ActorClassName"]]
    assert found
    # A lost node is not listed any more.
    return {kind for actor in found for kind in kinds.get(actor["Address"]["NodeID"], [])}


def kill_an_encoder(nodes):
    encoder, *_ = ray_cluster.find_ray_processes("MapWorker(MapBatches(Encode))")
    os.kill(encoder, signal.SIGKILL)


def lose_a_node(nodes):
    """A node is lost with all that runs on it; another one joins."""
    nodes.add("A10G")
    nodes.cluster.remove_node(nodes.a10g, allow_graceful=False)


def gain_a_node(nodes):
    nodes.add("A10G")


@pytest.mark.faults
@pytest.mark.parametrize("fault", [kill_an_encoder, lose_a_node, gain_a_node])
def test_preprocessing_survives_fault(fault, nodes, pairs_run, encoded_pairs, tmp_path):
    running = processes.VerbProcess("preprocess", pairs_run, **on(nodes, tmp_path))
    running.wait_for_commits(tmp_path, 2)
    began = time.monotonic()
    fault(nodes)
    running.succeed(seconds=250)
    print(f"{fault.__name__}: done {time.monotonic() - began:.1f} s later")
    pairs.assert_same_dataset(tmp_path, encoded_pairs[0])
