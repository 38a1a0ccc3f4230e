"""`tidemill run` on a Ray cluster: encoders encode pairs while workers of Ray Train train."""

import os
import re
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tidemill
from helpers import online, processes, ray_cluster, run_output, training
from safetensors.numpy import load_file

ENGINE = {**ray_cluster.SMALL_ENGINE, "engine.train": {"workers": 2, "cpus": 1}}


@pytest.fixture(scope="module")
def address():
    with ray_cluster.start_cluster(5) as address:
        yield address


def start(address, output, verb, *flags, **settings):
    """Starts a verb on the cluster."""
    run = {**training.SETTINGS, **ENGINE, "engine.ray.address": address, **settings}
    return processes.VerbProcess(verb, run, *flags, output=str(output))


def run_online(address, output, scenes, **settings):
    """Starts `tidemill run --mode online`."""
    settings = {**online.SETTINGS, "source.uri": scenes, **settings}
    return start(address, output, "run", "--mode", "online", **settings)


def test_run_verb_encodes_trains_and_exports_on_ray(address, trained_online, scenes, tmp_path):
    running = run_online(address, tmp_path, scenes, **{"engine.ray.env": {"FI_PROVIDER": "of-this-test"}})
    processes.wait_for_step(tmp_path, 1, running.process)
    for name in ("EncoderActor", "TrainWorker"):
        environments = [
            Path(f"/proc/{pid}/environ").read_text() for pid in ray_cluster.find_ray_processes(name)
        ]
        assert environments, name
        assert all("FI_PROVIDER=of-this-test\0" in variables for variables in environments), name
    result, log = running.succeed()
    assert result["train"]["finished"]
    assert "trained 24 steps" in log
    assert not (tmp_path / "dataset").exists()
    online.assert_same_training(tmp_path, trained_online)
    weights = load_file(f"{result['summary']['export']}/unet/diffusion_pytorch_model.safetensors")
    assert sum(tensor.size for tensor in weights.values()) > 0


def test_evaluators_on_ray_draw_what_one_on_this_machine_draws(address, trained_online, scenes, tmp_path):
    """One of two evaluators is killed in the middle of its work."""
    settings = {
        **online.SETTINGS,
        "source.uri": scenes,
        "sample.steps": 2,
        "sample.ema": False,
        "eval.scenes": 12,
        "eval.block": 2,
        "eval.lease_seconds": 2,
        "eval.models.dinov2": str(training.ASSETS / "judge"),
    }
    alone, together = tmp_path / "alone", tmp_path / "together"
    run = {**training.SETTINGS, **settings, "output": str(trained_online)}
    expected = tidemill.evaluate({**run, "eval.uri": str(alone)})
    pool = {"engine.eval": {"workers": 2, "cpus": 1}, "eval.uri": str(together)}
    running = start(address, trained_online, "eval", **settings, **pool)
    while not list(together.glob("step-*/blocks/*.json")):
        assert running.process.poll() is None, running.process.stderr.read()
        time.sleep(0.02)
    os.kill(ray_cluster.find_ray_processes("Evaluator")[0], signal.SIGKILL)
    result, log = running.succeed()
    assert f"step {online.STEPS}: 12 images" in log
    assert result["metrics"] == expected["metrics"]
    tables = [pq.read_table(folder / f"step-{online.STEPS:08}.parquet") for folder in (alone, together)]
    pictures = [
        [(folder / path).read_bytes() for path in table["path"].to_pylist()]
        for folder, table in zip((alone, together), tables, strict=True)
    ]
    assert len(pictures[0]) == 12
    assert pictures[0] == pictures[1]
    assert tables[0]["score_scene_score"] == tables[1]["score_scene_score"]


def test_missing_source_is_refused_before_start(address, scenes, tmp_path):
    code, result, log = run_online(address, tmp_path, f"{scenes}.none").finish()
    assert code == 2, log
    assert "source.uri" in result["error"]["message"]


def test_local_workers_ignore_ray_settings(dataset, tmp_path):
    """A single local worker has no process group."""
    training.link_dataset(tmp_path, dataset)
    phase = {**training.phase(2), "train.global_batch": 8, "train.micro_batch": 8}
    nowhere = {"engine.kind": "ray", "engine.train": {"workers": 2}, "engine.ray.address": "127.0.0.1:1"}
    run = processes.SupervisedTraining(tmp_path, "1", {**training.SETTINGS, **phase, **nowhere})
    result = run.succeed()
    assert result["steps"] == 2


@pytest.mark.faults
def test_online_training_is_bit_exact_after_driver_kill(address, trained_online, scenes, tmp_path, rng):
    running = run_online(address, tmp_path, scenes)
    victim, at = processes.find_child(running.process.pid, "ray.train.driver"), rng.randrange(9, 18)
    processes.wait_for_step(tmp_path, at, running.process)
    os.kill(victim, signal.SIGKILL)
    result, log = running.succeed()
    assert "restarting it from the last checkpoint" in log
    assert result["train"]["resumed_at"] >= 8
    online.assert_same_training(tmp_path, trained_online)
    run_output.print_longest_pause("the driver of an online run", tmp_path)


@pytest.mark.faults
def test_training_is_bit_exact_after_driver_kill(address, dataset, tmp_path, rng):
    settings = {**training.phase(60), **training.UNEVEN_BATCH}
    training.train_to_end(tmp_path / "alone", dataset, 2, **settings)
    training.link_dataset(tmp_path / "ray", dataset)
    running = start(address, tmp_path / "ray", "train", **settings)
    victim = processes.find_child(running.process.pid, "ray.train.driver")
    processes.wait_for_step(tmp_path / "ray", rng.randrange(9, 40), running.process)
    os.kill(victim, signal.SIGKILL)
    result, log = running.succeed()
    assert "restarting it from the last checkpoint" in log
    assert result["resumed_at"] >= 8
    run_output.assert_same_state(tmp_path / "alone", tmp_path / "ray", 60)
    run_output.print_longest_pause("the driver of training", tmp_path / "ray")


@pytest.mark.faults
def test_stopped_run_resumes_where_it_stopped(address, trained_online, scenes, tmp_path):
    running = run_online(address, tmp_path, scenes)
    processes.wait_for_step(tmp_path, 9, running.process)
    running.process.send_signal(signal.SIGTERM)
    code, result, log = running.finish()
    assert code == 1, log
    done = re.search(r"(\d+) of 24 steps", result["error"]["message"])
    result, log = run_online(address, tmp_path, scenes).succeed()
    # The run resumes where it stopped, not at an earlier checkpoint.
    assert result["train"]["resumed_at"] == int(done[1]) > 8
    online.assert_same_training(tmp_path, trained_online)
