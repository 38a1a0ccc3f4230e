"""Faults of supervised training: killed, hanging and stopped workers, and what is left of a run."""

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
from helpers import ports, processes, run_output, training
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

STEPS = 48
SETTINGS = {**training.UNEVEN_BATCH, "checkpoint.every": 5}


def steps(n=STEPS):
    return training.phase(n)


def supervised(output, dataset, workers, **settings):
    training.link_dataset(output, dataset)
    return processes.SupervisedTraining(output, workers, {**SETTINGS, **settings})


def assert_workers_end(workers):
    """Workers end soon after their supervisor."""
    until = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") for pid in workers.values()):
        assert time.monotonic() < until, "workers run without a supervisor"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def undisturbed(dataset, tmp_path_factory):
    output = tmp_path_factory.mktemp("undisturbed")
    run = supervised(output, dataset, "2", **steps())
    result = run.succeed()
    assert result["faults"] == [], run.log
    assert result["workers"] == 2, run.log
    return output


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_training_is_bit_exact_after_random_kills(kills, undisturbed, dataset, tmp_path, rng):
    run = supervised(tmp_path, dataset, "2", **steps())

    def count_health_checks():
        return "".join(run.log).count("ms for a matrix product")

    killed = 0
    while killed < kills:
        # Some worker groups get as far as their first health check, however slow the machine is.
        before = count_health_checks()
        if killed in (kills // 4, 3 * kills // 5):
            while count_health_checks() == before and run.process.poll() is None:
                time.sleep(0.02)
        # A fast machine must not finish before the last kill.
        until, latest = time.monotonic() + rng.uniform(0.2, 5), 2 * (killed + 1)
        while time.monotonic() < until and run_output.count_steps(tmp_path) < latest:
            time.sleep(0.02)
        assert run.process.poll() is None, f"over after {killed} kills: {run.log}"
        living = run.find_workers()
        if living:
            os.kill(rng.choice(sorted(living.values())), signal.SIGKILL)
            killed += 1
    code, result = run.finish()
    # A second kill can hit a worker group that is being replaced anyway.
    assert code == 0, run.log
    assert 3 * kills // 5 <= len(result["faults"]) <= kills, run.log
    assert all("was killed (signal 9" in fault["fault"] for fault in result["faults"]), result
    lines = re.findall(r"\d+ steps and [\d.]+ s since the checkpoint of step \d+ are lost", "".join(run.log))
    assert len(lines) == len(result["faults"])
    run_output.assert_faults_are_events(tmp_path, result["faults"])
    # Each worker group that gets that far checks its health again.
    assert 2 <= count_health_checks() <= len(result["faults"]) + 1
    assert sum("are lost; starting 2 workers again" in line for line in run.log) == len(result["faults"])
    run_output.assert_same_state(tmp_path, undisturbed, STEPS)
    assert run_output.read_losses(tmp_path) == run_output.read_losses(undisturbed)
    run_output.print_longest_pause(f"the worst of {kills} killed workers", tmp_path)


def test_hanging_rank_is_replaced_bit_exactly(undisturbed, dataset, tmp_path, rng):
    run = supervised(tmp_path, dataset, "2", **steps(), **{"supervisor.heartbeat_seconds": 2})
    run.wait_for_step(rng.randrange(5, 30))
    stopped = rng.randrange(2)
    os.kill(run.find_workers()[stopped], signal.SIGSTOP)
    result = run.succeed()
    (fault,) = result["faults"]
    assert fault["rank"] == stopped, result
    assert "no heartbeat for 2 s" in fault["fault"], result
    run_output.assert_same_state(tmp_path, undisturbed, STEPS)
    run_output.print_longest_pause("a worker that hangs", tmp_path)


@pytest.mark.parametrize("whom", ["supervisor", pytest.param("worker", marks=pytest.mark.slow)])
def test_sigterm_saves_checkpoint(whom, undisturbed, dataset, tmp_path):
    run = supervised(tmp_path, dataset, "2", **steps())
    run.wait_for_step(12)
    if whom == "supervisor":
        asked = time.monotonic()
        os.kill(run.process.pid, signal.SIGTERM)
        code, result = run.finish(seconds=30)
        print(f"stopped in {time.monotonic() - asked:.1f} s")
        assert code == 0, run.log
        assert not result["finished"], run.log
        assert result["steps"] >= 12, run.log
        # The checkpoint has all steps, and another number of workers resumes from it.
        run_output.assert_checkpoint(tmp_path, result["steps"])
        run = supervised(tmp_path, dataset, "3", **steps())
        result = run.succeed()
        assert result["resumed_at"] >= 12, run.log
        assert result["workers"] == 3, run.log
        np.testing.assert_allclose(
            run_output.read_losses(tmp_path), run_output.read_losses(undisturbed), rtol=2e-2
        )
    else:
        # Only one worker is stopped: nothing is lost, and the run continues.
        os.kill(run.find_workers()[1], signal.SIGTERM)
        result = run.succeed()
        (fault,) = result["faults"]
        assert fault["steps_lost"] == 0, result
        assert "stopped by a signal from outside" in fault["fault"], result
        run_output.assert_same_state(tmp_path, undisturbed, STEPS)
        run_output.print_longest_pause("a worker that is stopped by a signal", tmp_path)


def test_worker_that_exceeds_grace_period_is_killed(dataset, tmp_path, rng):
    run = supervised(tmp_path, dataset, "2", **steps(10000), **{"supervisor.grace_seconds": 2})
    run.wait_for_step(6)
    # The checkpoint is written while training continues.
    while not (tmp_path / "checkpoints/step-00000005/commit.json").exists():
        assert run.process.poll() is None, run.log
        time.sleep(0.02)
    workers = run.find_workers()
    os.kill(workers[rng.randrange(2)], signal.SIGSTOP)
    os.kill(run.process.pid, signal.SIGTERM)
    code, result = run.finish(seconds=60)
    assert code == 1, run.log
    assert "did not stop within 2 s" in result["error"]["message"], result
    assert not any(os.path.exists(f"/proc/{pid}") for pid in workers.values())
    # The earlier checkpoint is valid, or a later one that was written meanwhile.
    code, log = training.train(tmp_path, dataset, **SETTINGS, **steps(10))
    assert code == 0, log
    assert re.search(r"resuming after step (5|10)$", log, re.MULTILINE), log


@pytest.fixture
def default_sighup():
    """Restores the default action of SIGHUP, which `nohup` ignores, for child processes."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("default_sighup")
@pytest.mark.parametrize(
    "sent",
    [
        signal.SIGINT,
        *(pytest.param(sent, marks=pytest.mark.slow) for sent in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_signal_to_process_group_saves_checkpoint(sent, dataset, tmp_path):
    """Workers get it, too: ctrl-c and hangup of a terminal, a service manager's SIGTERM."""
    run = supervised(tmp_path, dataset, "2", **steps(10000))
    run.wait_for_step(3)
    os.killpg(run.process.pid, sent)
    result = run.succeed(seconds=60)
    assert not result["finished"]
    run_output.assert_checkpoint(tmp_path, result["steps"])


def test_second_ctrl_c_ends_at_once(dataset, tmp_path):
    """Even if a rank hangs."""
    run = supervised(tmp_path, dataset, "2", **steps(10000))
    run.wait_for_step(3)
    workers = run.find_workers()
    os.kill(workers[1], signal.SIGSTOP)
    try:
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert run.process.poll() is None, run.log
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(timeout=10) == 1, run.log
    finally:
        os.kill(workers[1], signal.SIGKILL)
    # No fault is reported.
    assert run.process.stdout.read() == ""
    assert_workers_end(workers)


def test_ctrl_c_saves_checkpoint_of_single_process(dataset, tmp_path):
    training.link_dataset(tmp_path, dataset)
    command = [sys.executable, *training.train_arguments(tmp_path, {**SETTINGS, **steps(10000)}), "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=training.environment(), **pipes)
    processes.wait_for_step(tmp_path, 3, process)
    process.send_signal(signal.SIGINT)
    out, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    result = json.loads(out.splitlines()[-1])
    assert not result["finished"]
    run_output.assert_checkpoint(tmp_path, result["steps"])
    assert "KeyboardInterrupt" not in log


def test_sigterm_before_first_step_ends_cleanly(dataset, tmp_path, rng):
    run = supervised(tmp_path, dataset, "2", **steps())
    while len(run.find_workers()) < 2:
        time.sleep(0.02)
    time.sleep(rng.uniform(0, 2))
    os.kill(run.process.pid, signal.SIGTERM)
    result = run.succeed(seconds=60)
    assert not result["finished"]


def test_repeatedly_failing_rank_is_excluded(undisturbed, dataset, tmp_path):
    run = supervised(tmp_path, dataset, "2..3", **steps(30), **{"checkpoint.every": 30})
    for _ in range(3):
        while 2 not in run.find_workers():
            time.sleep(0.02)
        victim = run.find_workers()[2]
        os.kill(victim, signal.SIGKILL)
        while victim in run.find_workers().values():
            time.sleep(0.02)
    result = run.succeed()
    assert result["workers"] == 2, run.log
    assert len(result["faults"]) == 3, run.log
    np.testing.assert_allclose(
        run_output.read_losses(tmp_path), run_output.read_losses(undisturbed)[:30], rtol=2e-2
    )


def test_jsonl_prometheus_and_tensorboard_metrics_agree(dataset, tmp_path):
    address = f"127.0.0.1:{ports.find_free_port()}"
    run = supervised(tmp_path, dataset, "2", **steps(10000), **{"train.prometheus": address})
    run.wait_for_step(7)
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    run.process.send_signal(signal.SIGTERM)
    run.succeed(seconds=60)
    lines = run_output.read_metrics(tmp_path)

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


def test_workers_end_with_their_supervisor(dataset, tmp_path):
    run = supervised(tmp_path, dataset, "2", **steps(10000))
    run.wait_for_step(3)
    workers = run.find_workers()
    run.process.kill()
    assert_workers_end(workers)


def test_permanent_errors_are_reported_once_without_restart(undisturbed, dataset, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("in the way")
    models = shutil.copytree(training.SETTINGS["models.path"], tmp_path / "models")
    with (models / "text_encoder/config.json").open("a") as config:
        config.write("\n")
    for workers, settings, reason in [
        ("1", {"train.phase": [{"resolution": 256, "steps": 3}]}, "256"),
        ("2", {"train.global_batch": 1, "train.micro_batch": 1}, "global_batch = 1 has no row"),
        ("1", {"models.path": str(models)}, "another text encoder"),
        ("1", {"checkpoint.uri": str(undisturbed / "checkpoints"), "seed": 7}, "seed"),
        ("2", {"checkpoint.uri": str(blocked)}, "blocked"),
        ("2", {"train.prometheus": "nowhere:0"}, "train.prometheus"),
    ]:
        run = supervised(tmp_path, dataset, workers, **settings)
        code, result = run.finish(seconds=120)
        log = "".join(run.log)
        assert code != 0, log
        assert reason in result["error"]["message"], log
        assert sum(line.startswith("error:") for line in run.log) == 1, log
        assert "workers again" not in log
        assert not (tmp_path / "metrics.jsonl").exists()


# While a file exists, rank 1 waits for memory-mapped data, as from a disk that hangs.
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


def test_rank_with_stalled_reads_is_replaced_bit_exactly(undisturbed, dataset, tmp_path):
    training.link_dataset(tmp_path, dataset)
    stalled = tmp_path / "stalled"
    variables = {**processes.preload_c_code(tmp_path, STALLED_READS), "STALLED": str(stalled)}
    settings = {**SETTINGS, **steps(), "supervisor.stall_seconds": 10, "train.stream.stall_seconds": 1}
    run = processes.SupervisedTraining(tmp_path, "2", settings, variables=variables)
    run.wait_for_step(3)
    stalled.touch()
    while not any("rank 1 has made no step for 10 s; it waits for data" in line for line in list(run.log)):
        assert run.process.poll() is None, run.log
        time.sleep(0.02)
    stalled.unlink()
    result = run.succeed()
    assert len(result["faults"]) == 1, result
    assert any("has waited for data for 1 s; check where the data comes from" in line for line in run.log)
    run_output.assert_same_state(tmp_path, undisturbed, STEPS)
    run_output.print_longest_pause("a worker whose data does not come", tmp_path)
