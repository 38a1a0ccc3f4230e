"""The cluster settings of a run file, for stages and trainers that Python starts."""

import os
import socket
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pytest
import ray
import tidemill
import tidemill.ray
from helpers import ports, processes, ray_cluster
from ray.train import RunConfig
from tidemill.ray import cluster
from tidemill.ray.preprocess import encoder_actor

GIVEN = {"FI_PROVIDER": "of-this-test", "NCCL_DEBUG": "WARN"}

# A trainer in a process that has not started Ray. Its worker reports its environment in a refusal.
TRAINER = """
import sys, ray, tidemill, tidemill.ray
from tidemill.run_file import ResolvedRun

def make():
    import os, tidemill
    raise tidemill.InputError("it has " + os.environ.get("FI_PROVIDER", "nothing"))

try:
    tidemill.ray.Trainer(ResolvedRun(sys.argv[1]), denoiser=make).fit()
except tidemill.InputError as error:
    print(error, "at", ray.get_runtime_context().gcs_address)
"""


@pytest.fixture(scope="module")
def address():
    with ray_cluster.start_cluster(2) as address:
        yield address


def settings(address, output="/tmp/nowhere"):
    return {"output": str(output), "engine.device": "cpu", "engine.ray": {"address": address, "env": GIVEN}}


@pytest.mark.slow
def test_trainer_joins_cluster_and_workers_get_env_vars(address, run, tmp_path):
    resolved = tidemill.resolve(run, **settings(address, tmp_path))
    command = [sys.executable, "-c", TRAINER, resolved.text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines()[-1] == f"it has of-this-test at {address}", done.stderr


def test_encoders_get_env_vars(address, run, monkeypatch):
    class Environment:
        """A stage that returns its environment, instead of the encoder."""

        def __init__(self, run):
            pass

        def __call__(self, table):
            return pa.table({"has": [os.environ.get("FI_PROVIDER", "nothing")]})

    monkeypatch.setattr(encoder_actor, "Encode", Environment)
    rows = ray.data.from_arrow(pa.table({"row": [1]}))
    encoded = tidemill.ray.encode(rows, tidemill.resolve(run, **settings(address)), num_cpus=0.5)
    assert encoded.take_all() == [{"has": "of-this-test"}]


def test_runtime_env_of_caller_overrides_run_file(run):
    theirs = {"env_vars": {"FI_PROVIDER": "theirs"}, "pip": ["a"]}
    both = {"env_vars": GIVEN | {"FI_PROVIDER": "theirs"}, "pip": ["a"]}
    resolved = tidemill.resolve(run, **settings("auto"))
    trainer = tidemill.ray.Trainer(resolved, run_config=RunConfig(worker_runtime_env=theirs))
    assert trainer._trainer.run_config.worker_runtime_env == both
    remote = cluster.add_remote_env_vars(resolved, {"runtime_env": theirs, "num_gpus": 1})
    assert remote == {"runtime_env": both, "num_gpus": 1}
    assert cluster.add_remote_env_vars(tidemill.resolve(run), {"num_gpus": 1}) == {"num_gpus": 1}


def test_invalid_cluster_address_is_refused():
    with pytest.raises(tidemill.InputError, match=r'^engine.ray.address = "nowhere": '):
        cluster.start_ray("nowhere")


@pytest.fixture
def ray_inits(monkeypatch):
    """Records the arguments of `ray.init` instead of starting Ray."""
    calls = []
    monkeypatch.setattr(ray, "init", lambda **options: calls.append(options))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return calls


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("address", "variable"),
    [("{}", None), ("ray://{}", None), ("{}", "otherhost:1"), (None, "{}"), ("auto", "ray://{}")],
)
def test_unreachable_address_is_refused_by_name(address, variable, ray_inits, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT_S", 1.0)
    place = f"localhost:{ports.find_free_port()}"
    address, variable = (text and text.format(place) for text in (address, variable))
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    named = f"RAY_ADDRESS={variable}" if address in (None, "auto") else f'engine.ray.address = "{address}"'
    with pytest.raises(tidemill.InputError) as error:
        cluster.start_ray(address)
    assert str(error.value).startswith(f"{named}: nothing has answered there for 1 s (")
    assert "head node" in str(error.value)
    assert not ray_inits


@pytest.mark.timeout(60)
def test_late_head_node_is_waited_for(ray_inits):
    port = ports.find_free_port()

    def listen():
        time.sleep(1)
        with socket.create_server(("127.0.0.1", port)) as server:
            server.accept()[0].close()

    head = threading.Thread(target=listen)
    head.start()
    cluster.start_ray(f"127.0.0.1:{port}")
    head.join()
    assert ray_inits == [{"address": f"127.0.0.1:{port}"}]


@pytest.mark.parametrize("address", [None, "auto", "local", "anyscale://mine:1"])
def test_symbolic_addresses_are_left_to_ray(address, ray_inits, monkeypatch):
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("tried"))
    cluster.start_ray(address)
    assert ray_inits == [{"address": address} if address else {}]


@pytest.mark.timeout(120)
def test_verb_reports_unreachable_cluster_soon(pairs_run, tmp_path):
    nowhere = f"127.0.0.1:{ports.find_free_port()}"
    settings = {"engine.kind": "ray", "engine.ray.address": nowhere}
    code, result, log = processes.VerbProcess(
        "preprocess", pairs_run, output=str(tmp_path), **settings
    ).finish(60)
    assert code == 2, log
    assert f'engine.ray.address = "{nowhere}": nothing has answered' in result["error"]["message"]
