"""The trainer on the workers of Ray Train: the same training as elsewhere, and it survives its
workers.
"""

import os
import shutil
import signal
from pathlib import Path

import pytest
import ranks
import tidemill
import tidemill.ray
from ray.train import ScalingConfig

STEPS = 60
SETTINGS = {
    "train.global_batch": 14,
    "train.micro_batch": 5,
    "train.phase": [{"resolution": 64, "steps": STEPS}],
    # Ray takes 2 s to hear of each.
    "checkpoint.every": 20,
}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with ranks.ray_of(4) as address:
        yield address


def trainer(output, dataset, workers, denoiser=None, **settings):
    ranks.link(output, dataset)
    run = tidemill.resolve({**ranks.SETTINGS, **SETTINGS, **settings, "output": str(output)})
    return tidemill.ray.Trainer(run, denoiser=denoiser, scaling_config=ScalingConfig(num_workers=workers))


@pytest.fixture(scope="module")
def undisturbed(dataset, tmp_path_factory):
    """Two workers of `tidemill train`."""
    output = tmp_path_factory.mktemp("undisturbed")
    code, said = ranks.train(output, dataset, 2, **SETTINGS)
    assert code == 0, said
    return output


def test_workers_of_ray_train_as_the_others_do(undisturbed, dataset, tmp_path):
    result = trainer(tmp_path, dataset, 2).fit()
    assert result.error is None
    assert result.return_value["finished"]
    assert result.metrics["step"] == STEPS
    assert result.metrics["loss"] == ranks.losses(undisturbed)[-1]
    ranks.assert_same(tmp_path, undisturbed, STEPS)
    # Ray knows where checkpoints are, and has no copies of them.
    last = tmp_path / f"checkpoints/step-{STEPS:08}"
    assert Path(result.checkpoint.path) == last
    assert result.metrics["checkpoint_uri"] == str(last)
    assert {path.parents[2] for path in tmp_path.rglob("*.safetensors")} == {tmp_path / "checkpoints"}


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.faults)])
def test_a_worker_that_is_lost_is_replaced(how, undisturbed, dataset, tmp_path, rng):
    """Killed, or told to stop, as one is whose node is taken back."""
    # After a checkpoint, which is written while training goes on.
    at = rng.randrange(25, 40)

    def kill():
        os.kill(rng.choice(ranks.ray_processes("TrainWorker")), how)

    with ranks.at_step(tmp_path, at, kill):
        result = trainer(tmp_path, dataset, 2).fit()
    assert result.metrics["step"] == STEPS
    # Of the last start: not from the beginning.
    assert result.return_value["resumed_at"] >= 20
    ranks.assert_same(tmp_path, undisturbed, STEPS)
    assert ranks.losses(tmp_path) == ranks.losses(undisturbed)
    ranks.tell_pause(f"a worker of Ray Train, {how.name}", tmp_path)


def test_workers_make_a_denoiser_of_their_own(dataset, tmp_path):
    def make():
        import torch

        class Blur(torch.nn.Conv2d):
            def forward(self, sample, timesteps, text):
                return super().forward(sample)

        return Blur(4, 4, 3, padding=1)

    result = trainer(tmp_path, dataset, 2, make).fit()
    assert result.return_value["finished"]
    module = make()
    assert tidemill.load({**ranks.SETTINGS, "output": str(tmp_path)}, module) == STEPS
    assert ranks.losses(tmp_path)[-1] < ranks.losses(tmp_path)[0]


def test_input_that_is_refused_is_not_tried_again(dataset, tmp_path):
    with pytest.raises(tidemill.InputError, match="has no row for some of the 2 ranks"):
        trainer(tmp_path, dataset, 2, **{"train.global_batch": 1, "train.micro_batch": 1}).fit()


@pytest.mark.faults
def test_what_no_restart_mends_ends_training(dataset, tmp_path):
    """A file that is damaged for good: not again and again for ever."""
    shutil.copytree(dataset, tmp_path / "dataset")
    for shard in (tmp_path / "dataset").rglob("latents-64.parquet"):
        shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(tidemill.TidemillError, match="failed 3 times without a checkpoint"):
        trainer(tmp_path, dataset, 2).fit()
