"""What a run file says of the cluster, where Python runs the stages and the trainer."""

import os
import socket
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pytest
import ranks
import ray
import tidemill
import tidemill.ray
from ray.train import RunConfig
from tidemill.ray import cluster
from tidemill.ray.preprocess import encoder_actor

GIVEN = {"FI_PROVIDER": "of-this-test", "NCCL_DEBUG": "WARN"}

# A trainer in a process that has not started Ray; what its worker refuses is what it sees.
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
    with ranks.ray_of(2) as address:
        yield address


def settings(address, output="/tmp/nowhere"):
    return {"output": str(output), "engine.device": "cpu", "engine.ray": {"address": address, "env": GIVEN}}


def test_a_trainer_joins_the_cluster_and_its_workers_get_the_environment(address, run, tmp_path):
    resolved = tidemill.resolve(run, **settings(address, tmp_path))
    command = [sys.executable, "-c", TRAINER, resolved.text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines()[-1] == f"it has of-this-test at {address}", done.stderr


def test_encoders_get_the_environment(address, run, monkeypatch):
    class Environment:
        """In place of the encoder."""

        def __init__(self, run):
            pass

        def __call__(self, table):
            return pa.table({"has": [os.environ.get("FI_PROVIDER", "nothing")]})

    monkeypatch.setattr(encoder_actor, "Encode", Environment)
    rows = ray.data.from_arrow(pa.table({"row": [1]}))
    encoded = tidemill.ray.encode(rows, tidemill.resolve(run, **settings(address)), num_cpus=0.5)
    assert encoded.take_all() == [{"has": "of-this-test"}]


def test_what_python_says_counts_more_than_the_run_file(run):
    theirs = {"env_vars": {"FI_PROVIDER": "theirs"}, "pip": ["a"]}
    both = {"env_vars": GIVEN | {"FI_PROVIDER": "theirs"}, "pip": ["a"]}
    resolved = tidemill.resolve(run, **settings("auto"))
    trainer = tidemill.ray.Trainer(resolved, run_config=RunConfig(worker_runtime_env=theirs))
    assert trainer._trainer.run_config.worker_runtime_env == both
    remote = cluster.add_remote_env_vars(resolved, {"runtime_env": theirs, "num_gpus": 1})
    assert remote == {"runtime_env": both, "num_gpus": 1}
    assert cluster.add_remote_env_vars(tidemill.resolve(run), {"num_gpus": 1}) == {"num_gpus": 1}


def test_a_cluster_that_cannot_be_is_refused():
    with pytest.raises(tidemill.InputError, match=r'^engine.ray.address = "nowhere": '):
        cluster.start_ray("nowhere")


@pytest.fixture
def started(monkeypatch):
    """What `ray.init` is called with."""
    calls = []
    monkeypatch.setattr(ray, "init", lambda **options: calls.append(options))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return calls


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("address", "variable"),
    [("{}", None), ("ray://{}", None), ("{}", "elsewhere:1"), (None, "{}"), ("auto", "ray://{}")],
)
def test_an_address_at_which_nothing_answers_is_refused_by_name(address, variable, started, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT_S", 1.0)
    place = f"localhost:{ranks.free_port()}"
    address, variable = (text and text.format(place) for text in (address, variable))
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    named = f"RAY_ADDRESS={variable}" if address in (None, "auto") else f'engine.ray.address = "{address}"'
    with pytest.raises(tidemill.InputError) as error:
        cluster.start_ray(address)
    assert str(error.value).startswith(f"{named}: nothing has answered there for 1 s (")
    assert "head node" in str(error.value)
    assert not started


@pytest.mark.timeout(60)
def test_a_head_node_that_comes_up_late_is_waited_for(started):
    port = ranks.free_port()

    def listen():
        time.sleep(1)
        with socket.create_server(("127.0.0.1", port)) as server:
            server.accept()[0].close()

    head = threading.Thread(target=listen)
    head.start()
    cluster.start_ray(f"127.0.0.1:{port}")
    head.join()
    assert started == [{"address": f"127.0.0.1:{port}"}]


@pytest.mark.parametrize("address", [None, "auto", "local", "anyscale://mine:1"])
def test_what_ray_looks_up_is_left_to_it(address, started, monkeypatch):
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("tried"))
    cluster.start_ray(address)
    assert started == [{"address": address} if address else {}]


@pytest.mark.timeout(120)
def test_a_verb_says_soon_that_its_cluster_cannot_be_reached(pairs_run, tmp_path):
    nowhere = f"127.0.0.1:{ranks.free_port()}"
    settings = {"engine.kind": "ray", "engine.ray.address": nowhere}
    code, result, said = ranks.Running("preprocess", pairs_run, output=str(tmp_path), **settings).end(60)
    assert code == 2, said
    assert f'engine.ray.address = "{nowhere}": nothing has answered' in result["error"]["message"]
