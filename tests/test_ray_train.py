"""The trainer on Ray Train trains like local workers, also if workers are lost."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import tidemill
import tidemill.ray
from helpers import processes, ray_cluster, run_output, training
from ray.train import ScalingConfig

STEPS = 48
SETTINGS = {
    **training.UNEVEN_BATCH,
    **training.phase(STEPS),
    # A report to Ray Train takes about 2 s.
    "checkpoint.every": 16,
}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with ray_cluster.start_cluster(4) as address:
        yield address


def trainer(output, dataset, workers, denoiser=None, **settings):
    training.link_dataset(output, dataset)
    run = tidemill.resolve({**training.SETTINGS, **SETTINGS, **settings, "output": str(output)})
    return tidemill.ray.Trainer(run, denoiser=denoiser, scaling_config=ScalingConfig(num_workers=workers))


@pytest.fixture(scope="module")
def undisturbed(dataset, tmp_path_factory):
    """The output of two workers of `tidemill train`, undisturbed."""
    output = tmp_path_factory.mktemp("undisturbed")
    training.train_to_end(output, dataset, 2, **SETTINGS)
    return output


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.faults)])
def test_lost_worker_is_replaced_bit_exactly(how, undisturbed, dataset, tmp_path, rng):
    """Ray's workers train like local ones, although one is killed, or stopped as on a node that is taken
    back.
    """
    # After the checkpoint of step 16, which is written while training continues.
    at = rng.randrange(22, 34)

    def kill():
        os.kill(rng.choice(ray_cluster.find_ray_processes("TrainWorker")), how)

    with processes.act_at_step(tmp_path, at, kill):
        result = trainer(tmp_path, dataset, 2).fit()
    assert result.error is None
    assert result.return_value["finished"]
    assert result.metrics["step"] == STEPS
    assert result.metrics["loss"] == run_output.read_losses(undisturbed)[-1]
    # Ray knows where checkpoints are, and has no copies of them.
    last = tmp_path / f"checkpoints/step-{STEPS:08}"
    assert Path(result.checkpoint.path) == last
    assert result.metrics["checkpoint_uri"] == str(last)
    assert {path.parents[2] for path in tmp_path.rglob("*.safetensors")} == {tmp_path / "checkpoints"}
    # The last start resumed from a checkpoint.
    assert result.return_value["resumed_at"] >= 16
    run_output.assert_same_state(tmp_path, undisturbed, STEPS)
    assert run_output.read_losses(tmp_path) == run_output.read_losses(undisturbed)
    run_output.print_longest_pause(f"a worker of Ray Train, {how.name}", tmp_path)


@pytest.mark.slow
def test_workers_train_own_denoiser(dataset, tmp_path):
    def make():
        import torch

        class Blur(torch.nn.Conv2d):
            def forward(self, sample, timesteps, text):
                return super().forward(sample)

        torch.manual_seed(0)
        return Blur(4, 4, 3, padding=1)

    result = trainer(tmp_path, dataset, 2, make, **training.phase(16)).fit()
    assert result.return_value["finished"]
    module = make()
    assert tidemill.load({**training.SETTINGS, "output": str(tmp_path)}, module) == 16
    losses = run_output.read_losses(tmp_path)
    assert sum(losses[8:]) < sum(losses[:8]), losses


@pytest.mark.slow
def test_refused_input_is_not_retried(dataset, tmp_path):
    with pytest.raises(tidemill.InputError, match="has no row for some of the 2 ranks"):
        trainer(tmp_path, dataset, 2, **{"train.global_batch": 1, "train.micro_batch": 1}).fit()


@pytest.mark.faults
def test_damaged_dataset_ends_training_after_three_failures(dataset, tmp_path):
    """Restarts do not repair a damaged file, so they must end."""
    shutil.copytree(dataset, tmp_path / "dataset")
    for shard in (tmp_path / "dataset").rglob("latents-64.parquet"):
        shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(tidemill.TidemillError, match="failed 3 times without a checkpoint"):
        trainer(tmp_path, dataset, 2).fit()
