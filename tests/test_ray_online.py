"""Trainers on Ray Train, fed by encoders while they train: the same rows as on one machine, whoever
dies.
"""

import os
import signal
import time

import online
import pytest
import ranks
import ray
import tidemill
import tidemill.ray
from ray.train import ScalingConfig
from tidemill.ray.online.encoder_pool import EncoderPool
from tidemill.ray.online.encoder_pool_client import EncoderPoolClient

from benches import sleeping_stages

ENGINE = {
    "engine.kind": "ray",
    "engine.encode.workers": "1..2",
    "engine.encode.cpus": 0.5,
    "engine.prepare.cpus": 0.5,
    "checkpoint.every": 8,
}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with ranks.ray_of(5) as address:
        yield address


def trainer(output, scenes, mode="online", **settings):
    settings = {**ranks.SETTINGS, **online.SETTINGS, **ENGINE, "source.uri": scenes, **settings}
    run = tidemill.resolve({**settings, "output": str(output)})
    return tidemill.ray.Trainer(run, mode=mode, scaling_config=ScalingConfig(num_workers=2))


def encoders_so_far():
    """How many there have been, also those that are gone."""
    return sum("EncoderActor" in actor["ActorClassName"] for actor in ray._private.state.actors().values())


def test_encoders_feed_trainers_with_the_same_rows(trained_online, scenes, tmp_path):
    before = encoders_so_far()
    result = trainer(tmp_path, scenes).fit()
    assert encoders_so_far() > before
    assert result.return_value["finished"]
    assert not (tmp_path / "dataset").exists()
    online.assert_same(tmp_path, trained_online)
    # They are gone with the training.
    assert not ranks.ray_processes("ray::EncoderActor")


@pytest.mark.parametrize(
    ("prepare_s", "encode_s", "encoders"), [(1.0, 0.02, 1), (0.05, 0.5, 3)], ids=["prepare", "encode"]
)
def test_the_slowest_stage_gets_the_workers(prepare_s, encode_s, encoders):
    speeds = sleeping_stages.Speeds(rows=4, prepare_s=prepare_s, encode_s=encode_s)
    pool = {"workers": "1..3", "cpus": 0.1, "gpus": 0}
    prepare = {"workers": 0, "cpus": 1}
    pool_actor = EncoderPool.remote(
        {"engine": {"device": "cpu", "prepare": prepare, "encode": pool}, "speeds": speeds},
        sleeping_stages.prepare_unit,
        sleeping_stages.EncoderActor,
    )
    wanted = EncoderPoolClient(pool_actor)
    numbers = [wanted.want("unit", 0, 64) for _ in range(40)]
    start = most = 0
    for number in numbers:
        while wanted.take(number) is None:
            pass
        # Once processes have started.
        start = start or time.monotonic()
        most = max(most, ray.get(pool_actor.get_stats.remote())["encoders"])
    seconds = time.monotonic() - start
    ray.kill(pool_actor)
    assert most == encoders
    # One unit after the other would take 40 times as long as one.
    assert seconds < 30 * max(prepare_s, encode_s)


@pytest.mark.faults
@pytest.mark.parametrize("victim", ["ray::EncoderActor", "TrainWorker"])
def test_whoever_dies_no_row_is_lost(victim, trained_online, scenes, tmp_path, rng):
    at = rng.randrange(6, 18)

    def kill():
        os.kill(rng.choice(ranks.ray_processes(victim)), signal.SIGKILL)

    with ranks.at_step(tmp_path, at, kill):
        result = trainer(tmp_path, scenes).fit()
    assert result.return_value["steps"] == online.STEPS
    online.assert_same(tmp_path, trained_online)
    ranks.tell_pause(f"online, {victim}", tmp_path)


def test_colocated_workers_need_no_encoders(scenes, tmp_path):
    phase = [{"resolution": 64, "steps": 4}]
    before = encoders_so_far()
    result = trainer(tmp_path, scenes, mode="colocated", **{"train.phase": phase}).fit()
    assert result.return_value["steps"] == 4
    assert result.return_value["rows"]["read"] > 0
    assert encoders_so_far() == before
