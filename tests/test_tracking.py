"""Trackers that follow training: the real clients without a network, and clients that fail."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from helpers import processes, run_output, training
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

pytestmark = pytest.mark.timeout(60)

# A client that notes what it is given. `FAKE_LOG` is the file for that.
FAKE_WANDB = """
import json, os, signal

class Run:
    id, offline, url = "fake", False, "https://user:secret@host/run"
    settings = type("Settings", (), {"sync_dir": "folder"})

    def define_metric(self, *names, **more):
        note("pid", os.getpid())

    def log(self, row):
        note("step", row["step"])
        ON_LOG

    def finish(self, exit_code):
        note("exit_code", exit_code)

def note(key, value):
    with open(os.environ["FAKE_LOG"], "a") as file:
        file.write(json.dumps({key: value}) + "\\n")

def init(**arguments):
    return Run()

Image = str
"""
FAKE = {"track.wandb": {"project": "p"}}
SMALL = {"train.global_batch": 8, "train.micro_batch": 8}


@pytest.fixture
def variables(monkeypatch):
    """Environment variables of real clients, which this process has, too."""
    # Without it newer versions refuse to use folders, and databases need further packages.
    variables = {"MLFLOW_ALLOW_FILE_STORE": "true", "WANDB_ERROR_REPORTING": "false"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


def fake_wandb(tmp_path, on_log="pass"):
    """Environment variables with which a fake takes the place of the package `wandb`."""
    (tmp_path / "wandb.py").write_text(FAKE_WANDB.replace("ON_LOG", on_log))
    return {"PYTHONPATH": str(tmp_path), "FAKE_LOG": str(tmp_path / "fake.jsonl")}


def read_fake_log(tmp_path, key):
    """What the fake has noted under a key."""
    path = tmp_path / "fake.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line[key] for line in lines if key in line]


def train(output, dataset, variables, **settings):
    """Trains; returns the exit code and the log."""
    training.link_dataset(output, dataset)
    return training.run_together([(training.train_arguments(output, {**SMALL, **settings}), variables)])


@contextmanager
def long_training(output, dataset, tmp_path):
    """A training that follows the fake, and has made a few steps."""
    training.link_dataset(output, dataset)
    command = training.train_arguments(output, {**SMALL, **FAKE, **training.phase(100_000)})
    environment = {**training.environment(), **fake_wandb(tmp_path)}
    trainer = subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.DEVNULL)
    try:
        processes.wait_for_step(output, 3, trainer)
        yield trainer
    finally:
        trainer.kill()
        trainer.wait()


def read_records(path):
    """The records of a W&B file: after seven bytes, blocks of LevelDB's log format."""
    data, at, record = path.read_bytes(), 7, b""
    while at < len(data):
        # A block's last bytes are empty if no header fits.
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += 7 + length
        record += data[at - length : at]
        # All of a record, or its last part.
        if kind in (1, 4):
            yield Record.FromString(record)
            record = b""


def read_wandb(folder):
    """The rows of an offline run, and its configuration."""
    (path,) = folder.glob("*.wandb")
    rows, config = [], {}
    for record in read_records(path):
        if items := record.history.item:
            names = [item.key or ".".join(item.nested_key) for item in items]
            rows.append({name: json.loads(item.value_json) for name, item in zip(names, items, strict=True)})
        config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    return rows, config


def check_mlflow(client, run_id, output):
    """MLflow has the numbers of all steps, under the tags of TensorBoard, and the picture."""
    run, metrics = client.get_run(run_id), run_output.read_metrics(output)
    assert run.info.status == "FINISHED"
    for tag, name in [("train/loss", "loss"), ("train/grad_norm", "grad_norm")]:
        history = sorted((metric.step, metric.value) for metric in client.get_metric_history(run_id, tag))
        assert history == [(line["step"], line[name]) for line in metrics]
    events = EventAccumulator(str(output / "tensorboard"))
    events.Reload()
    assert set(run.data.metrics) == set(events.Tags()["scalars"])
    (picture,) = client.list_artifacts(run_id, "preview")
    assert picture.path == "preview/step-00000005.png"
    with open(client.download_artifacts(run_id, picture.path), "rb") as file:
        assert file.read() == (output / "previews" / "step-00000005.png").read_bytes()
    with open(client.download_artifacts(run_id, "config.json")) as file:
        return run.data.params, json.load(file)


def test_real_clients_get_metrics_pictures_and_configuration_and_resume(dataset, tmp_path, variables):
    output, store = tmp_path / "run", (tmp_path / "mlruns").as_uri()
    settings = {
        "train.preview": {"every": 5, "prompts": ["a circle"], "steps": 2},
        "track.wandb": {"mode": "offline", "project": "p", "tags": ["t"]},
        "track.mlflow": {"tracking_uri": store, "experiment": "e"},
    }
    client, ids = MlflowClient(store), None
    for steps, first in [(6, 1), (8, 7)]:
        code, log = train(output, dataset, variables, **settings, **training.phase(steps))
        assert code == 0, log
        assert "tracking: " not in log, log
        before, ids = ids, json.loads((output / "tracking.json").read_text())
        assert before in (None, ids)
        params, config = check_mlflow(client, ids["mlflow"], output)
        assert (params["train.learning_rate"], params["train.precision"]) == ("0.001", "f32")
        assert json.loads(params["train.phase"])[0]["steps"] == 6
        assert config["train"]["phase"][0]["steps"] == steps
        assert "track" not in config
        # The newest of the folders.
        folder = sorted((output / "wandb").glob(f"offline-run-*-{ids['wandb']}"))[-1]
        rows, wandb_config = read_wandb(folder)
        assert wandb_config["train"] == config["train"]
        pictures = [row["preview.path"] for row in rows if "preview.path" in row]
        assert len(pictures) == (1 if first == 1 else 0)
        assert all((folder / "files" / picture).exists() for picture in pictures)
        losses = {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}
        lines = run_output.read_metrics(output)[first - 1 :]
        assert losses == {line["step"]: line["loss"] for line in lines}
    experiment = client.get_experiment(client.get_run(ids["mlflow"]).info.experiment_id)
    assert experiment.name == "e"


def test_missing_client_refuses_the_run(dataset, tmp_path):
    (tmp_path / "wandb.py").write_text("raise ImportError('it is not here')")
    output = tmp_path / "run"
    code, log = train(output, dataset, {"PYTHONPATH": str(tmp_path)}, **FAKE)
    assert code == 2, log
    # Long lines of an error are wrapped.
    text = " ".join(log.replace("│", " ").split())
    assert "track.wandb: ImportError: it is not here; install it:" in text
    assert "-m pip install wandb" in text
    assert not (output / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("on_log", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "tracking ended unexpectedly"),
        ("raise OSError('no answer from https://user:secret@host')", "wandb: no answer from https://host"),
    ],
)
def test_failing_client_is_reported_once_and_training_ends(on_log, message, dataset, tmp_path):
    output = tmp_path / "run"
    code, log = train(output, dataset, fake_wandb(tmp_path, on_log), **FAKE)
    assert code == 0, log
    assert log.count(message) == 1, log
    assert "tracked in https://host/run" in log
    assert "secret" not in log
    assert len(run_output.read_metrics(output)) == 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_last_steps_are_tracked_after_a_signal(number, dataset, tmp_path):
    output = tmp_path / "run"
    with long_training(output, dataset, tmp_path) as trainer:
        (tracker,) = read_fake_log(tmp_path, "pid")
        # A terminal or a service manager signals all processes.
        for pid in (tracker, trainer.pid):
            os.kill(pid, number)
        assert trainer.wait(timeout=50) == 0
    steps = [line["step"] for line in run_output.read_metrics(output)]
    assert read_fake_log(tmp_path, "step") == steps
    assert read_fake_log(tmp_path, "exit_code") == [0]


def test_tracked_run_of_a_killed_trainer_has_failed(dataset, tmp_path):
    with long_training(tmp_path / "run", dataset, tmp_path) as trainer:
        trainer.kill()
    deadline = time.monotonic() + 20
    while not read_fake_log(tmp_path, "exit_code") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert read_fake_log(tmp_path, "exit_code") == [1]
