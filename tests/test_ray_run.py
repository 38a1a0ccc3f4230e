"""`tidemill run` on a cluster, all of it: pairs are encoded while workers of Ray Train train."""

import os
import re
import signal
from pathlib import Path

import online
import pytest
import ranks
from safetensors.numpy import load_file

ENGINE = {
    "engine.kind": "ray",
    "engine.encode.workers": "1..2",
    "engine.encode.cpus": 0.5,
    "engine.prepare.cpus": 0.5,
    "engine.train": {"workers": 2, "cpus": 1},
    "checkpoint.every": 8,
}


@pytest.fixture(scope="module")
def address():
    with ranks.ray_of(5) as address:
        yield address


def start(address, output, verb, *flags, **settings):
    """A verb on the cluster."""
    run = {**ranks.SETTINGS, **ENGINE, "engine.ray.address": address, **settings}
    return ranks.Running(verb, run, *flags, output=str(output))


def run_online(address, output, scenes, **settings):
    """`tidemill run --mode online`."""
    settings = {**online.SETTINGS, "source.uri": scenes, **settings}
    return start(address, output, "run", "--mode", "online", **settings)


def test_one_command_encodes_trains_and_exports(address, trained_online, scenes, tmp_path):
    running = run_online(address, tmp_path, scenes, **{"engine.ray.env": {"FI_PROVIDER": "of-this-test"}})
    ranks.wait_for(tmp_path, 1, running.process)
    for name in ("EncoderActor", "TrainWorker"):
        environments = [Path(f"/proc/{pid}/environ").read_text() for pid in ranks.ray_processes(name)]
        assert environments, name
        assert all("FI_PROVIDER=of-this-test\0" in variables for variables in environments), name
    code, result, said = running.end()
    assert code == 0, said
    assert result["train"]["finished"]
    assert "trained 24 steps" in said
    assert not (tmp_path / "dataset").exists()
    online.assert_same(tmp_path, trained_online)
    weights = load_file(f"{result['summary']['export']}/unet/diffusion_pytorch_model.safetensors")
    assert sum(tensor.size for tensor in weights.values()) > 0


def test_what_can_be_refused_at_once_is(address, scenes, tmp_path):
    code, result, said = run_online(address, tmp_path, f"{scenes}.none").end()
    assert code == 2, said
    assert "source.uri" in result["error"]["message"]


def test_workers_that_are_started_here_stay_here(dataset, tmp_path):
    """Also one by itself, which has no process group."""
    ranks.link(tmp_path, dataset)
    phase = {"train.phase": [{"resolution": 64, "steps": 2}], "train.global_batch": 8, "train.micro_batch": 8}
    nowhere = {"engine.kind": "ray", "engine.train": {"workers": 2}, "engine.ray.address": "127.0.0.1:1"}
    run = ranks.Supervised(tmp_path, "1", {**ranks.SETTINGS, **phase, **nowhere})
    code, result = run.end()
    assert code == 0, run.said
    assert result["steps"] == 2


@pytest.mark.faults
def test_a_driver_that_is_killed_costs_time_and_nothing_else(address, trained_online, scenes, tmp_path, rng):
    running = run_online(address, tmp_path, scenes)
    victim, at = ranks.child(running.process.pid, "ray.train.driver"), rng.randrange(9, 18)
    ranks.wait_for(tmp_path, at, running.process)
    os.kill(victim, signal.SIGKILL)
    code, result, said = running.end()
    assert code == 0, said
    assert "starting it again from the last checkpoint" in said
    assert result["train"]["resumed_at"] >= 8
    online.assert_same(tmp_path, trained_online)
    ranks.tell_pause("the driver of an online run", tmp_path)


@pytest.mark.faults
def test_a_driver_of_training_that_is_killed_costs_as_little(address, dataset, tmp_path, rng):
    phase = [{"resolution": 64, "steps": 60}]
    settings = {"train.phase": phase, "train.global_batch": 14, "train.micro_batch": 5}
    code, said = ranks.train(tmp_path / "alone", dataset, 2, **settings)
    assert code == 0, said
    ranks.link(tmp_path / "ray", dataset)
    running = start(address, tmp_path / "ray", "train", **settings)
    victim = ranks.child(running.process.pid, "ray.train.driver")
    ranks.wait_for(tmp_path / "ray", rng.randrange(9, 40), running.process)
    os.kill(victim, signal.SIGKILL)
    code, result, said = running.end()
    assert code == 0, said
    assert "starting it again from the last checkpoint" in said
    assert result["resumed_at"] >= 8
    ranks.assert_same(tmp_path / "alone", tmp_path / "ray", 60)
    ranks.tell_pause("the driver of training", tmp_path / "ray")


@pytest.mark.faults
def test_a_run_that_is_stopped_goes_on(address, trained_online, scenes, tmp_path):
    running = run_online(address, tmp_path, scenes)
    ranks.wait_for(tmp_path, 9, running.process)
    running.process.send_signal(signal.SIGTERM)
    code, result, said = running.end()
    assert code == 1, said
    done = re.search(r"(\d+) of 24 steps", result["error"]["message"])
    code, result, said = run_online(address, tmp_path, scenes).end()
    assert code == 0, said
    # From where it stopped, not from the checkpoint before.
    assert result["train"]["resumed_at"] == int(done[1]) > 8
    online.assert_same(tmp_path, trained_online)
