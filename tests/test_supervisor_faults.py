"""Workers that are killed, stopped and told to go: what the supervisor makes of it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
import ranks
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

STEPS = 80
SETTINGS = {"train.global_batch": 14, "train.micro_batch": 5, "checkpoint.every": 5}


def steps(n=STEPS):
    return {"train.phase": [{"resolution": 64, "steps": n}]}


def supervised(output, dataset, workers, **settings):
    ranks.link(output, dataset)
    return ranks.Supervised(output, workers, {**SETTINGS, **settings})


def assert_gone(workers):
    """These end soon without a supervisor."""
    until = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") for pid in workers.values()):
        assert time.monotonic() < until, "workers go on without a supervisor"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def undisturbed(dataset, tmp_path_factory):
    output = tmp_path_factory.mktemp("undisturbed")
    run = supervised(output, dataset, "2", **steps())
    code, result = run.end()
    assert code == 0, run.said
    assert result["faults"] == [], run.said
    assert result["workers"] == 2, run.said
    return output


def test_ranks_killed_at_random_cost_time_and_nothing_else(undisturbed, dataset, tmp_path, rng):
    run = supervised(tmp_path, dataset, "2", **steps())

    def looked_at():
        return "".join(run.said).count("ms for a matrix product")

    kills = 0
    while kills < 20:
        # Some crews come as far as their first look at each other, however slow the machine is.
        before = looked_at()
        while kills in (5, 12) and looked_at() == before and run.process.poll() is None:
            time.sleep(0.02)
        # A fast machine must not come to the end before the last.
        until, latest = time.monotonic() + rng.uniform(0.2, 5), 3 * (kills + 1)
        while time.monotonic() < until and ranks.steps_so_far(tmp_path) < latest:
            time.sleep(0.02)
        assert run.process.poll() is None, f"over after {kills} kills: {run.said}"
        living = run.workers()
        if living:
            os.kill(rng.choice(sorted(living.values())), signal.SIGKILL)
            kills += 1
    code, result = run.end()
    # A second kill can hit a crew that is being replaced anyway.
    assert code == 0, run.said
    assert 12 <= len(result["faults"]) <= 20, run.said
    assert all("was killed (signal 9" in fault["fault"] for fault in result["faults"]), result
    lines = re.findall(r"\d+ steps and [\d.]+ s since the checkpoint of step \d+ are lost", "".join(run.said))
    assert len(lines) == len(result["faults"])
    # Health is looked at again with each crew that comes that far.
    assert 2 <= looked_at() <= len(result["faults"]) + 1
    assert sum("are lost; starting 2 workers again" in line for line in run.said) == len(result["faults"])
    ranks.assert_same(tmp_path, undisturbed, STEPS)
    assert ranks.losses(tmp_path) == ranks.losses(undisturbed)
    ranks.tell_pause("the worst of 20 killed workers", tmp_path)


def test_a_rank_that_hangs_is_replaced(undisturbed, dataset, tmp_path, rng):
    run = supervised(tmp_path, dataset, "2", **steps(), **{"supervisor.heartbeat_seconds": 2})
    run.reaches(rng.randrange(5, 40))
    stopped = rng.randrange(2)
    os.kill(run.workers()[stopped], signal.SIGSTOP)
    code, result = run.end()
    (fault,) = result["faults"]
    assert code == 0, result
    assert fault["rank"] == stopped, result
    assert "no heartbeat for 2 s" in fault["fault"], result
    ranks.assert_same(tmp_path, undisturbed, STEPS)
    ranks.tell_pause("a worker that hangs", tmp_path)


@pytest.mark.parametrize("whom", ["supervisor", "worker"])
def test_sigterm_saves_and_ends_well(whom, undisturbed, dataset, tmp_path):
    run = supervised(tmp_path, dataset, "2", **steps())
    run.reaches(12)
    if whom == "supervisor":
        asked = time.monotonic()
        os.kill(run.process.pid, signal.SIGTERM)
        code, result = run.end(seconds=30)
        print(f"stopped in {time.monotonic() - asked:.1f} s")
        assert code == 0, run.said
        assert not result["finished"], run.said
        assert result["steps"] >= 12, run.said
        # All that was done is in a checkpoint; another number of workers goes on from it.
        assert (tmp_path / f"checkpoints/step-{result['steps']:08}/commit.json").exists()
        run = supervised(tmp_path, dataset, "3", **steps())
        code, result = run.end()
        assert code == 0, run.said
        assert result["resumed_at"] >= 12, run.said
        assert result["workers"] == 3, run.said
        np.testing.assert_allclose(ranks.losses(tmp_path), ranks.losses(undisturbed), rtol=2e-2)
    else:
        # The system takes one worker back: nothing is lost, and the run goes on.
        os.kill(run.workers()[1], signal.SIGTERM)
        code, result = run.end()
        (fault,) = result["faults"]
        assert code == 0, result
        assert fault["steps_lost"] == 0, result
        assert "stopped by a signal from outside" in fault["fault"], result
        ranks.assert_same(tmp_path, undisturbed, STEPS)
        ranks.tell_pause("a worker that is told to go", tmp_path)


def test_who_does_not_stop_in_time_is_killed(dataset, tmp_path, rng):
    run = supervised(tmp_path, dataset, "2", **steps(10000), **{"supervisor.grace_seconds": 2})
    run.reaches(6)
    # It is written while training goes on.
    while not (tmp_path / "checkpoints/step-00000005/commit.json").exists():
        assert run.process.poll() is None, run.said
        time.sleep(0.02)
    workers = run.workers()
    os.kill(workers[rng.randrange(2)], signal.SIGSTOP)
    os.kill(run.process.pid, signal.SIGTERM)
    code, result = run.end(seconds=60)
    assert code == 1, run.said
    assert "did not stop within 2 s" in result["error"]["message"], result
    assert not any(os.path.exists(f"/proc/{pid}") for pid in workers.values())
    # What was saved before holds.
    run = supervised(tmp_path, dataset, "2", **steps(10))
    code, result = run.end()
    assert code == 0, run.said
    assert result["resumed_at"] >= 5, result


@pytest.fixture
def hangups():
    """What is started takes SIGHUP for what it is, also if `nohup` has it ignored here."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_processes_saves_and_ends_well(sent, dataset, tmp_path):
    """Ctrl-C in a terminal goes to the workers, too, as do its end and what a service manager
    sends.
    """
    run = supervised(tmp_path, dataset, "2", **steps(10000))
    run.reaches(3)
    os.killpg(run.process.pid, sent)
    code, result = run.end(seconds=60)
    assert code == 0, run.said
    assert not result["finished"]
    assert (tmp_path / f"checkpoints/step-{result['steps']:08}/commit.json").exists()


def test_a_second_ctrl_c_ends_at_once(dataset, tmp_path):
    """Whatever a rank does that cannot be waited for."""
    run = supervised(tmp_path, dataset, "2", **steps(10000))
    run.reaches(3)
    workers = run.workers()
    os.kill(workers[1], signal.SIGSTOP)
    try:
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert run.process.poll() is None, run.said
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(timeout=10) == 1, run.said
    finally:
        os.kill(workers[1], signal.SIGKILL)
    # It has found no fault.
    assert run.process.stdout.read() == ""
    assert_gone(workers)


def test_ctrl_c_saves_what_a_single_process_has(dataset, tmp_path):
    ranks.link(tmp_path, dataset)
    command = [sys.executable, *ranks.arguments(tmp_path, {**SETTINGS, **steps(10000)}), "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=ranks.environment(), **pipes)
    ranks.wait_for(tmp_path, 3, process)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    result = json.loads(out.splitlines()[-1])
    assert not result["finished"]
    assert (tmp_path / f"checkpoints/step-{result['steps']:08}/commit.json").exists()
    assert "KeyboardInterrupt" not in said


def test_sigterm_before_the_first_step_ends_well(dataset, tmp_path, rng):
    run = supervised(tmp_path, dataset, "2", **steps())
    while len(run.workers()) < 2:
        time.sleep(0.02)
    time.sleep(rng.uniform(0, 2))
    os.kill(run.process.pid, signal.SIGTERM)
    code, result = run.end(seconds=60)
    assert code == 0, run.said
    assert not result["finished"]


def test_a_place_that_fails_again_and_again_is_left_out(undisturbed, dataset, tmp_path):
    run = supervised(tmp_path, dataset, "2..3", **steps(30), **{"checkpoint.every": 30})
    for _ in range(3):
        while 2 not in run.workers():
            time.sleep(0.02)
        victim = run.workers()[2]
        os.kill(victim, signal.SIGKILL)
        while victim in run.workers().values():
            time.sleep(0.02)
    code, result = run.end()
    assert code == 0, run.said
    assert result["workers"] == 2, run.said
    assert len(result["faults"]) == 3, run.said
    np.testing.assert_allclose(ranks.losses(tmp_path), ranks.losses(undisturbed)[:30], rtol=2e-2)


def test_metrics_are_the_same_wherever_one_looks(dataset, tmp_path):
    address = f"127.0.0.1:{ranks.free_port()}"
    run = supervised(tmp_path, dataset, "2", **steps(10000), **{"train.prometheus": address})
    run.reaches(7)
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    run.process.send_signal(signal.SIGTERM)
    code, _ = run.end(seconds=60)
    assert code == 0, run.said
    lines = ranks.metrics(tmp_path)

    def labelled(name, label):
        return {sample.labels.get(label): sample.value for sample in families[name].samples}

    line = lines[int(families["tidemill_step"].samples[0].value) - 1]
    for name, value in [
        ("loss", line["loss"]),
        ("gradient_norm", line["grad_norm"]),
        ("learning_rate", line["learning_rate"]),
        ("images_per_second", line["images_per_second"]),
        ("data_wait_ratio", line["data_wait"]),
        ("checkpoint_step", line["checkpoint"]),
        ("checkpoint_failures", 0),
        ("rollbacks", 0),
    ]:
        (sample,) = families[f"tidemill_{name}"].samples
        assert sample.value == value, name
    exposed = {kind: time["exposed"] for kind, time in line["communication"].items()}
    assert labelled("tidemill_communication_exposed_seconds", "of") == exposed
    memory = {str(rank): mib << 20 for rank, mib in enumerate(line["memory_mib"])}
    assert labelled("tidemill_resident_memory_bytes", "rank") == memory

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for tag, value in [
        ("train/loss", lambda line: line["loss"]),
        ("train/grad_norm", lambda line: line["grad_norm"]),
        ("train/learning_rate", lambda line: line["learning_rate"]),
        ("throughput/images_per_second", lambda line: line["images_per_second"]),
        ("throughput/data_wait", lambda line: line["data_wait"]),
        ("communication/gradients", lambda line: line["communication"]["gradients"]["busy"]),
        ("communication/weights_exposed", lambda line: line["communication"]["weights"]["exposed"]),
        ("memory/most_of_any_rank_mib", lambda line: max(line["memory_mib"])),
        ("checkpoint/step", lambda line: line["checkpoint"]),
    ]:
        found = [(scalar.step, scalar.value) for scalar in events.Scalars(tag)]
        np.testing.assert_allclose(found, [(line["step"], value(line)) for line in lines], rtol=1e-6)


def test_workers_do_not_outlive_their_supervisor(dataset, tmp_path):
    run = supervised(tmp_path, dataset, "2", **steps(10000))
    run.reaches(3)
    workers = run.workers()
    run.process.kill()
    assert_gone(workers)


def test_what_no_restart_mends_is_refused_once(undisturbed, dataset, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("in the way")
    models = shutil.copytree(ranks.SETTINGS["models.path"], tmp_path / "models")
    with (models / "text_encoder/config.json").open("a") as config:
        config.write("\n")
    for settings, reason in [
        ({"train.phase": [{"resolution": 256, "steps": 3}]}, "256"),
        ({"train.global_batch": 1, "train.micro_batch": 1}, "global_batch = 1 has no row"),
        ({"models.path": str(models)}, "another text encoder"),
        ({"checkpoint.uri": str(undisturbed / "checkpoints"), "seed": 7}, "seed"),
        ({"checkpoint.uri": str(blocked)}, "blocked"),
        ({"train.prometheus": "nowhere:0"}, "train.prometheus"),
    ]:
        run = supervised(tmp_path, dataset, "2", **settings)
        code, result = run.end(seconds=120)
        said = "".join(run.said)
        assert code != 0, said
        assert reason in result["error"]["message"], said
        assert sum(line.startswith("error:") for line in run.said) == 1, said
        assert "workers again" not in said
        assert not (tmp_path / "metrics.jsonl").exists()


# While there is a file, one rank does not get what it has mapped into memory, as from a disk that
# hangs.
STALLED_READS = """
#include <sys/mman.h>
#include <unistd.h>
int madvise(void *start, size_t length, int advice) {
    int (*real)(void *, size_t, int) = dlsym(RTLD_NEXT, "madvise");
    const char *rank = getenv("RANK");
    int populate = 22;
    if (advice == populate && rank && !strcmp(rank, "1"))
        while (!access(getenv("STALLED"), F_OK)) usleep(10000);
    return real(start, length, advice);
}
"""


def test_a_rank_that_gets_no_data_is_replaced(undisturbed, dataset, tmp_path):
    ranks.link(tmp_path, dataset)
    stalled = tmp_path / "stalled"
    variables = {**ranks.put_before_libc(tmp_path, STALLED_READS), "STALLED": str(stalled)}
    settings = {**SETTINGS, **steps(), "supervisor.stall_seconds": 15, "train.stream.stall_seconds": 1}
    run = ranks.Supervised(tmp_path, "2", settings, variables=variables)
    run.reaches(3)
    stalled.touch()
    while not any("rank 1 has made no step for 15 s; it waits for data" in line for line in list(run.said)):
        assert run.process.poll() is None, run.said
        time.sleep(0.02)
    stalled.unlink()
    code, result = run.end()
    assert code == 0, run.said
    assert len(result["faults"]) == 1, result
    assert any("has waited for data for 1 s; look at where they come from" in line for line in run.said)
    ranks.assert_same(tmp_path, undisturbed, STEPS)
    ranks.tell_pause("a worker whose data does not come", tmp_path)
