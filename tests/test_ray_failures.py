"""Failures of workers and encoders on Ray, and when they end training."""

import os
import shutil

import pytest
import ray
import tidemill
import tidemill.ray
from helpers import ray_cluster, training
from ray.exceptions import RayActorError
from ray.train import ScalingConfig
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from tidemill.ray.online.encoder_pool import EncoderPool
from tidemill.ray.online.encoder_pool_client import EncoderPoolClient
from tidemill.ray.train.failure_policy import FailurePolicy, WorkerStoppedError

from benches import sleeping_stages

REFUSED = tidemill.InputError("engine.device: no such GPU")
DAMAGED = tidemill.TidemillError("latents-64.parquet: block 3 is damaged")
DEAD = WorkerHealthCheckFailedError("rank 0", RayActorError())


def fail_groups(*groups, saved=0):
    """Lets groups of workers report a checkpoint, and then fail with these errors."""
    policy = FailurePolicy()
    for errors in groups:
        policy.after_report(None, [{"step": saved + 1, "checkpoint": saved}] * 2, None)
        policy.after_exception(None, dict(enumerate(errors)))


@pytest.mark.parametrize(
    "errors",
    [
        [DAMAGED],
        [DAMAGED, DAMAGED],
        [tidemill.LostPeersError("rank 1 is gone"), DAMAGED],
        [ModuleNotFoundError("No module named 'mine'")],
        [WorkerHealthCheckFailedError("rank 0", TypeError("cannot pickle 'generator' object"))],
    ],
)
@pytest.mark.parametrize("saved", [0, 25])
def test_third_same_failure_without_checkpoint_ends_training(errors, saved):
    fail_groups(errors, errors, saved=saved)
    with pytest.raises(tidemill.TidemillError, match="failed 3 times without a checkpoint: "):
        fail_groups(errors, errors, errors, saved=saved)


@pytest.mark.parametrize("errors", [[REFUSED], [tidemill.LostPeersError("rank 1 is gone"), REFUSED]])
def test_refused_input_ends_training_at_once(errors):
    """Training ends also if other workers report only the loss of the one that refuses."""
    with pytest.raises(tidemill.InputError, match=r"^engine\.device: no such GPU$"):
        fail_groups(errors)


def test_refused_input_is_retried_after_checkpoint():
    """A disk may be unavailable for a while."""
    fail_groups([REFUSED], [REFUSED], saved=25)
    with pytest.raises(tidemill.TidemillError, match="failed 3 times without a checkpoint: "):
        fail_groups([REFUSED], [REFUSED], [REFUSED], saved=25)


@pytest.mark.parametrize(
    "errors",
    [
        [tidemill.LostPeersError("rank 1 is gone")],
        [WorkerStoppedError("after step 7")],
        [DEAD],
        # The other workers report only the consequence of the death.
        [DEAD, RuntimeError("connection closed by peer")],
        [DEAD, REFUSED],
    ],
)
def test_lost_workers_are_replaced_without_limit(errors):
    fail_groups(*[errors] * 20)


def test_new_checkpoint_resets_failure_count():
    policy = FailurePolicy()
    for step in range(20):
        policy.after_report(None, [{"checkpoint": step}], None)
        policy.after_exception(None, {0: DAMAGED})


def test_failures_that_differ_only_in_ids_are_the_same():
    log = "ray::EncoderActor.__init__() (pid={}, ip=10.0.0.{}, actor_id={}, repr=<Encoder at {}>)"
    accounts = [
        (31, 1, "30ec71f481b29f916b4978fc01000000", "0x7f44df027890"),
        (977, 12, "828ff22b67b308589bfe5e6901000000", "0x7fa0"),
        (5, 3, "deadbeefdeadbeef0100000000000000", "0x7f44df0278f0"),
    ]
    groups = [[tidemill.TidemillError(log.format(*ids))] for ids in accounts]
    with pytest.raises(tidemill.TidemillError, match="failed 3 times"):
        fail_groups(*groups)
    # Different errors are counted separately.
    fail_groups(*[[tidemill.TidemillError(f"{name} is damaged")] for name in ("a", "b", "c", "d")])


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster.start_cluster(2) as address:
        yield address


def take(encoders):
    """Takes the rows of a unit like a trainer."""
    number = encoders.want("unit", 0, 64)
    while (rows := encoders.take(number)) is None:
        pass
    return rows


def test_death_of_encoder_pool_is_not_failure_of_worker(cluster):
    @ray.remote(num_cpus=0)
    class DyingPool:
        def encode_unit(self, unit, epoch, resolution):
            os._exit(1)

    encoders = EncoderPoolClient(DyingPool.remote())
    with pytest.raises(tidemill.TidemillError, match="the encoder pool has died"):
        take(encoders)
    assert encoders.is_pool_lost


def take_encoded(start, encode=int):
    """The rows that a trainer gets from encoders with this start and this work for each unit."""

    @ray.remote
    class Encoder:
        def __init__(self, run):
            start()

        def wait_until_ready(self):
            pass

        @ray.method(num_returns=2)
        def encode(self, prepared):
            encode()
            return prepared, 0.0

    engine = {"device": "cpu", "prepare": {"workers": 0, "cpus": 0}}
    engine["encode"] = {"workers": 1, "cpus": 0, "gpus": 0}
    run = {"engine": engine, "speeds": sleeping_stages.Speeds(rows=1, prepare_s=0.0, encode_s=0.0)}
    pool = EncoderPool.remote(run, sleeping_stages.prepare_unit, Encoder)
    encoders = EncoderPoolClient(pool)
    try:
        return take(encoders)
    finally:
        ray.kill(pool)
        assert not encoders.is_pool_lost


@pytest.mark.timeout(60)
def test_encoder_start_failure_is_reported_without_ids(cluster):
    """The message has nothing that would differ for the next encoder."""

    def start():
        raise LookupError("there is no such model\nnor a similar one")

    with pytest.raises(tidemill.TidemillError) as error:
        take_encoded(start)
    log = "an encoder cannot be started: LookupError: there is no such model\nnor a similar one"
    assert str(error.value) == log


@pytest.mark.timeout(60)
def test_encoder_that_refuses_to_start_names_node_and_reason(cluster):
    def start():
        raise tidemill.InputError("engine.device: no such GPU\n  as this")

    with pytest.raises(tidemill.InputError) as error:
        take_encoded(start)
    node = ray.util.get_node_ip_address()
    assert str(error.value) == f"an encoder on {node} refuses to start: engine.device: no such GPU\n  as this"


@pytest.mark.timeout(60)
def test_refusal_of_replacement_encoder_may_be_retried(cluster, tmp_path):
    """The refusal does not end the run: only the replacement's node may lack something."""
    first = tmp_path / "first"

    def start():
        if first.exists():
            raise tidemill.InputError("models.path: there is no such folder")
        first.touch()

    with pytest.raises(tidemill.TidemillError, match=r"refuses to start: models\.path") as error:
        take_encoded(start, encode=lambda: os._exit(1))
    assert not isinstance(error.value, tidemill.InputError)


@pytest.mark.timeout(60)
def test_encoder_killed_during_start_is_replaced(cluster, tmp_path):
    def start():
        first = tmp_path / "first"
        if not first.exists():
            first.touch()
            os._exit(1)

    assert take_encoded(start).num_rows == 1
    assert (tmp_path / "first").exists()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_fit_starts_after_checkpoints_were_deleted(cluster, dataset, tmp_path, monkeypatch):
    """Nothing remains of a deleted checkpoint, as in an object store."""
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.3")
    training.link_dataset(tmp_path, dataset)
    for steps in (3, 4):
        settings = {**training.phase(steps), "checkpoint.every": 1}
        settings |= {"train.global_batch": 4, "train.micro_batch": 4, "checkpoint.keep": 1}
        run = tidemill.resolve({**training.SETTINGS, **settings, "output": str(tmp_path)})
        result = tidemill.ray.Trainer(run, scaling_config=ScalingConfig(num_workers=1)).fit()
        assert result.return_value["steps"] == steps
        last = tmp_path / f"checkpoints/step-{steps:08}"
        assert result.checkpoint.path == str(last)
        for folder in tmp_path.glob("checkpoints/step-*"):
            if not (folder / "commit.json").exists():
                shutil.rmtree(folder)
        assert list(tmp_path.glob("checkpoints/step-*")) == [last]


@pytest.mark.faults
@pytest.mark.timeout(120)
def test_repeated_failure_after_checkpoint_ends_training(cluster, dataset, tmp_path, monkeypatch):
    """The user's denoiser fails two steps after each start, before the next checkpoint."""

    def make():
        import torch

        class Broken(torch.nn.Conv2d):
            forwards = 0

            def forward(self, sample, timesteps, text):
                self.forwards += torch.is_grad_enabled()
                saved = (tmp_path / "checkpoints/step-00000005/commit.json").exists()
                if saved and self.forwards > 2:
                    raise LookupError(f"no such row: {id(self)}")
                return super().forward(sample)

        return Broken(4, 4, 3, padding=1)

    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.3")
    training.link_dataset(tmp_path, dataset)
    phase = training.phase(500)
    settings = {**phase, "train.global_batch": 4, "train.micro_batch": 4, "checkpoint.every": 5}
    settings["checkpoint.keep"] = 1000
    run = tidemill.resolve({**training.SETTINGS, **settings, "output": str(tmp_path)})
    trainer = tidemill.ray.Trainer(run, denoiser=make, scaling_config=ScalingConfig(num_workers=1))
    with pytest.raises(tidemill.TidemillError, match="failed 3 times without a checkpoint: LookupError"):
        trainer.fit()
