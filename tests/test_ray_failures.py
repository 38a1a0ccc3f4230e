"""What workers of Ray Train fail with, and when they are not started again."""

import os
import shutil

import pytest
import ranks
import ray
import tidemill
import tidemill.ray
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


def failing(*crews, saved=0):
    """What ends training after crews that each told of the same checkpoint and failed with these
    errors.
    """
    policy = FailurePolicy()
    for errors in crews:
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
def test_the_same_failure_without_a_new_checkpoint_ends_training(errors, saved):
    failing(errors, errors, saved=saved)
    with pytest.raises(tidemill.TidemillError, match="failed 3 times without a checkpoint: "):
        failing(errors, errors, errors, saved=saved)


@pytest.mark.parametrize("errors", [[REFUSED], [tidemill.LostPeersError("rank 1 is gone"), REFUSED]])
def test_what_is_refused_ends_training_at_once(errors):
    """Also where the others say only that they have lost who refuses."""
    with pytest.raises(tidemill.InputError, match=r"^engine\.device: no such GPU$"):
        failing(errors)


def test_what_is_refused_of_a_run_that_has_come_to_a_checkpoint_is_tried_again():
    """A disk may be gone for a while."""
    failing([REFUSED], [REFUSED], saved=25)
    with pytest.raises(tidemill.TidemillError, match="failed 3 times without a checkpoint: "):
        failing([REFUSED], [REFUSED], [REFUSED], saved=25)


@pytest.mark.parametrize(
    "errors",
    [
        [tidemill.LostPeersError("rank 1 is gone")],
        [WorkerStoppedError("after step 7")],
        [DEAD],
        # Others say what comes of it.
        [DEAD, RuntimeError("connection closed by peer")],
        [DEAD, REFUSED],
    ],
)
def test_workers_that_are_lost_are_replaced_for_ever(errors):
    failing(*[errors] * 20)


def test_a_new_checkpoint_gives_hope():
    policy = FailurePolicy()
    for step in range(20):
        policy.after_report(None, [{"checkpoint": step}], None)
        policy.after_exception(None, {0: DAMAGED})


def test_what_differs_between_two_accounts_of_an_error_does_not_count():
    said = "ray::EncoderActor.__init__() (pid={}, ip=10.0.0.{}, actor_id={}, repr=<Encoder at {}>)"
    accounts = [
        (31, 1, "30ec71f481b29f916b4978fc01000000", "0x7f44df027890"),
        (977, 12, "828ff22b67b308589bfe5e6901000000", "0x7fa0"),
        (5, 3, "deadbeefdeadbeef0100000000000000", "0x7f44df0278f0"),
    ]
    crews = [[tidemill.TidemillError(said.format(*ids))] for ids in accounts]
    with pytest.raises(tidemill.TidemillError, match="failed 3 times"):
        failing(*crews)
    # Others do.
    failing(*[[tidemill.TidemillError(f"{name} is damaged")] for name in ("a", "b", "c", "d")])


@pytest.fixture(scope="module")
def cluster():
    with ranks.ray_of(2) as address:
        yield address


def take(encoders):
    """What trainers make of a unit's rows."""
    number = encoders.want("unit", 0, 64)
    while (rows := encoders.take(number)) is None:
        pass
    return rows


def test_a_feeder_that_dies_is_no_fault_of_trainers(cluster):
    @ray.remote(num_cpus=0)
    class DyingPool:
        def encode_unit(self, unit, epoch, resolution):
            os._exit(1)

    encoders = EncoderPoolClient(DyingPool.remote())
    with pytest.raises(tidemill.TidemillError, match="the encoder pool has died"):
        take(encoders)
    assert encoders.is_pool_lost


def fed(start, encode=int):
    """What a trainer gets whose encoders begin with this, and do that for each unit."""

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
def test_encoders_that_cannot_start_say_why(cluster):
    """With nothing in it that the next one would say otherwise."""

    def start():
        raise LookupError("there is no such model\nnor a similar one")

    with pytest.raises(tidemill.TidemillError) as error:
        fed(start)
    said = "an encoder cannot be started: LookupError: there is no such model\nnor a similar one"
    assert str(error.value) == said


@pytest.mark.timeout(60)
def test_encoders_that_refuse_to_start_say_where_and_why(cluster):
    def start():
        raise tidemill.InputError("engine.device: no such GPU\n  as this")

    with pytest.raises(tidemill.InputError) as error:
        fed(start)
    node = ray.util.get_node_ip_address()
    assert str(error.value) == f"an encoder on {node} refuses to start: engine.device: no such GPU\n  as this"


@pytest.mark.timeout(60)
def test_what_an_encoder_refuses_that_takes_anothers_place_may_be_tried_again(cluster, tmp_path):
    """It is no refusal of the run, which would end it: its node may lack what others have."""
    first = tmp_path / "first"

    def start():
        if first.exists():
            raise tidemill.InputError("models.path: there is no such folder")
        first.touch()

    with pytest.raises(tidemill.TidemillError, match=r"refuses to start: models\.path") as error:
        fed(start, encode=lambda: os._exit(1))
    assert not isinstance(error.value, tidemill.InputError)


@pytest.mark.timeout(60)
def test_an_encoder_that_is_killed_while_it_starts_is_replaced(cluster, tmp_path):
    def start():
        first = tmp_path / "first"
        if not first.exists():
            first.touch()
            os._exit(1)

    assert fed(start).num_rows == 1
    assert (tmp_path / "first").exists()


@pytest.mark.timeout(120)
def test_checkpoints_that_were_deleted_are_not_missed(cluster, dataset, tmp_path, monkeypatch):
    """Also where nothing stays of them, as with a store of objects."""
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.3")
    ranks.link(tmp_path, dataset)
    for steps in (3, 4):
        settings = {"train.phase": [{"resolution": 64, "steps": steps}], "checkpoint.every": 1}
        settings |= {"train.global_batch": 4, "train.micro_batch": 4, "checkpoint.keep": 1}
        run = tidemill.resolve({**ranks.SETTINGS, **settings, "output": str(tmp_path)})
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
def test_what_fails_after_a_checkpoint_again_and_again_ends_training(cluster, dataset, tmp_path, monkeypatch):
    """An exception of the user's own, two steps after each start: too few for another checkpoint."""

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
    ranks.link(tmp_path, dataset)
    phase = [{"resolution": 64, "steps": 500}]
    settings = {"train.phase": phase, "train.global_batch": 4, "train.micro_batch": 4, "checkpoint.every": 5}
    settings["checkpoint.keep"] = 1000
    run = tidemill.resolve({**ranks.SETTINGS, **settings, "output": str(tmp_path)})
    trainer = tidemill.ray.Trainer(run, denoiser=make, scaling_config=ScalingConfig(num_workers=1))
    with pytest.raises(tidemill.TidemillError, match="failed 3 times without a checkpoint: LookupError"):
        trainer.fit()
