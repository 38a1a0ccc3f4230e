"""What a run file says of the cluster, where Python runs the stages and the trainer."""

import os
import subprocess
import sys

import pyarrow as pa
import pytest
import ranks
import ray
import tidemill
import tidemill.ray
from ray.train import RunConfig
from tidemill.ray import cluster, stages

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

    monkeypatch.setattr(stages, "Encode", Environment)
    rows = ray.data.from_arrow(pa.table({"row": [1]}))
    encoded = tidemill.ray.encode(rows, tidemill.resolve(run, **settings(address)), num_cpus=0.5)
    assert encoded.take_all() == [{"has": "of-this-test"}]


def test_what_python_says_counts_more_than_the_run_file(run):
    theirs = {"env_vars": {"FI_PROVIDER": "theirs"}, "pip": ["a"]}
    both = {"env_vars": GIVEN | {"FI_PROVIDER": "theirs"}, "pip": ["a"]}
    resolved = tidemill.resolve(run, **settings("auto"))
    trainer = tidemill.ray.Trainer(resolved, run_config=RunConfig(worker_runtime_env=theirs))
    assert trainer._trainer.run_config.worker_runtime_env == both
    remote = cluster.remote_with_env(resolved, {"runtime_env": theirs, "num_gpus": 1})
    assert remote == {"runtime_env": both, "num_gpus": 1}
    assert cluster.remote_with_env(tidemill.resolve(run), {"num_gpus": 1}) == {"num_gpus": 1}


def test_a_cluster_that_cannot_be_is_refused():
    with pytest.raises(tidemill.InputError, match=r'^engine.ray.address = "nowhere": '):
        cluster.start("nowhere")
