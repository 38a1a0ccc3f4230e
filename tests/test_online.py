"""Online training: whatever happens to workers, they train on the same rows."""

import json
import os
import signal
from glob import glob

import numpy as np
from helpers import online, run_output, training
from tidemill.run_file import resolve

# The second rank gets no more rows after three units, and is stopped a while later. Both write down
# the units that they have asked for.
STALLING_WORKER = """
import json, os, sys, threading, time
import tidemill
from tidemill import _native
from tidemill.run_file import ResolvedRun, to_arguments

run, stop = ResolvedRun(sys.argv[1]), threading.Event()


class StallingEncoders:
    def __init__(self):
        self.prepare, self.encode = _native.Preparer(*to_arguments(run, {})).prepare, tidemill.Encode(run)
        self.wanted, self.taken = [], 0

    def want(self, *unit):
        self.wanted.append(unit)
        return len(self.wanted) - 1

    def take(self, number):
        if os.environ["RANK"] == "1" and self.taken == 3:
            threading.Timer(15, stop.set).start()
            time.sleep(0.5)
            return None
        self.taken += 1
        return self.encode(self.prepare(*self.wanted[number]))


encoders = StallingEncoders()
result = tidemill.train(run, mode="online", encoders=encoders, stop=stop)
with open(f"{sys.argv[2]}/wanted-{os.environ['RANK']}.json", "w") as file:
    json.dump(encoders.wanted, file)
if os.environ["RANK"] == "0":
    print("result:", json.dumps(result))
"""


def test_online_training_is_bit_exact_after_worker_kill(trained_online, scenes, tmp_path, rng):
    run = online.start_training(tmp_path, scenes, "2")
    run.wait_for_step(rng.randrange(6, 18))
    os.kill(rng.choice(sorted(run.find_workers().values())), signal.SIGKILL)
    result = run.succeed()
    assert len(result["faults"]) == 1, run.log
    online.assert_same_training(tmp_path, trained_online)


def test_online_training_resumes_with_other_numbers_of_workers(scenes, tmp_path):
    """The units of the previous ranks are assigned again; the crate's own tests count the rows."""
    for workers, steps in [(2, 7), (3, 15), (1, 20)]:
        phase = training.phase(steps)
        run = online.start_training(tmp_path, scenes, str(workers), **phase)
        result = run.succeed()
        assert result["steps"] == steps
        commit = json.loads((tmp_path / f"checkpoints/step-{steps:08}/commit.json").read_text())
        assert len(commit["progress"]["stream"]["lanes"]) == workers
    assert np.isfinite(run_output.read_losses(tmp_path)).all()


def test_ranks_waiting_for_rows_save_checkpoint_when_stopped(trained_online, scenes, tmp_path):
    """Ranks that have their rows also wait: no step begins before all ranks can take it."""
    settings = {"source.uri": scenes, "train.stream.stall_seconds": 4, "output": str(tmp_path)}
    run = resolve({**training.SETTINGS, **online.SETTINGS, **settings})
    script = tmp_path / "stalling_worker.py"
    script.write_text(STALLING_WORKER)
    code, log = training.run_together(training.launch_ranks([str(script), run.text, str(tmp_path)], 2))
    assert code == 0, log
    result = json.loads(log.split("result: ")[1].splitlines()[0])
    assert not result["finished"], log
    assert 0 < result["steps"] < online.STEPS, log
    waits = [line for line in log.splitlines() if "has waited for data" in line]
    assert waits, log
    assert all(line.startswith("rank 1: ") for line in waits), "only rank 1 lacks rows"
    assert (tmp_path / f"checkpoints/step-{result['steps']:08}/commit.json").exists()
    # Windows of two units are assigned to the ranks in turn.
    wanted = [json.loads((tmp_path / f"wanted-{rank}.json").read_text()) for rank in range(2)]
    assigned = [{unit for unit, epoch, _ in asked if epoch == 0} for asked in wanted]
    assert [len(units) for units in assigned] == [4, 4]
    assert len(set.union(*assigned)) == len(glob(scenes)) == 8
    run = online.start_training(tmp_path, scenes, "2")
    run.succeed()
    online.assert_same_training(tmp_path, trained_online)
