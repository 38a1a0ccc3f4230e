"""Online training on Ray: the same rows and weights as on one machine, also if processes die."""

import os
import signal
import time
from collections import deque

import pytest
import ray
import tidemill
import tidemill.ray
from helpers import online, processes, ray_cluster, run_output, training
from ray.train import ScalingConfig
from tidemill.ray.online.encoder_pool import EncoderPool
from tidemill.ray.online.encoder_pool_client import EncoderPoolClient

from benches import sleeping_stages


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with ray_cluster.start_cluster(5) as address:
        yield address


def trainer(output, scenes, mode="online", **settings):
    settings = {
        **training.SETTINGS,
        **online.SETTINGS,
        **ray_cluster.SMALL_ENGINE,
        "source.uri": scenes,
        **settings,
    }
    run = tidemill.resolve({**settings, "output": str(output)})
    return tidemill.ray.Trainer(run, mode=mode, scaling_config=ScalingConfig(num_workers=2))


def encoders_so_far():
    """The number of encoders that have been started so far."""
    return sum("EncoderActor" in actor["ActorClassName"] for actor in ray._private.state.actors().values())


@pytest.mark.slow
def test_online_on_ray_matches_local_online_training(trained_online, scenes, tmp_path):
    before = encoders_so_far()
    result = trainer(tmp_path, scenes).fit()
    assert encoders_so_far() > before
    assert result.return_value["finished"]
    assert not (tmp_path / "dataset").exists()
    online.assert_same_training(tmp_path, trained_online)
    # The encoders end with the training.
    assert not ray_cluster.find_ray_processes("ray::EncoderActor")


@pytest.mark.parametrize(
    ("prepare_s", "encode_s", "encoders"),
    [
        pytest.param(1.0, 0.02, 1, id="prepare", marks=pytest.mark.slow),
        pytest.param(0.05, 0.5, 3, id="encode"),
    ],
)
def test_slowest_stage_gets_the_workers(prepare_s, encode_s, encoders):
    speeds = sleeping_stages.Speeds(rows=4, prepare_s=prepare_s, encode_s=encode_s)
    encode = {"workers": "1..3", "cpus": 0.1, "gpus": 0}
    prepare = {"workers": 0, "cpus": 1}
    pool = EncoderPool.remote(
        {"engine": {"device": "cpu", "prepare": prepare, "encode": encode}, "speeds": speeds},
        sleeping_stages.prepare_unit,
        sleeping_stages.EncoderActor,
    )
    wanted = EncoderPoolClient(pool)
    numbers = deque(wanted.want("unit", 0, 64) for _ in range(40))
    start = most = served = 0
    while numbers:
        number = numbers.popleft()
        while wanted.take(number) is None:
            pass
        # The clock starts after the first processes have.
        start, served = start or time.monotonic(), served + 1
        most = max(most, ray.get(pool.get_stats.remote())["encoders"])
        # A busy machine takes long to start the other processes. The units must not run out before.
        if most < encoders and served < 200:
            numbers.append(wanted.want("unit", 0, 64))
    seconds = time.monotonic() - start
    ray.kill(pool)
    assert most == encoders
    # Unit after unit would take as long as all of them together.
    assert seconds < 0.75 * served * max(prepare_s, encode_s)


@pytest.mark.faults
@pytest.mark.parametrize("victim", ["ray::EncoderActor", "TrainWorker"])
def test_online_training_is_bit_exact_after_kill(victim, trained_online, scenes, tmp_path, rng):
    at = rng.randrange(6, 18)

    def kill():
        os.kill(rng.choice(ray_cluster.find_ray_processes(victim)), signal.SIGKILL)

    with processes.act_at_step(tmp_path, at, kill):
        result = trainer(tmp_path, scenes).fit()
    assert result.return_value["steps"] == online.STEPS
    online.assert_same_training(tmp_path, trained_online)
    run_output.print_longest_pause(f"online, {victim}", tmp_path)


@pytest.mark.slow
def test_colocated_workers_start_no_encoders(scenes, tmp_path):
    phase = training.phase(4)
    before = encoders_so_far()
    result = trainer(tmp_path, scenes, mode="colocated", **phase).fit()
    assert result.return_value["steps"] == 4
    assert result.return_value["rows"]["read"] > 0
    assert encoders_so_far() == before
