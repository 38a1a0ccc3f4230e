"""Workers that train on pairs as they come: whatever happens, the rows are those that would have
come.
"""

import json
import os
import signal
import sys
from glob import glob

import numpy as np
import online
import ranks
from tidemill.run_file import resolve

# The second rank gets no more rows after three units, and is told to stop a while later.
# Both tell what they have asked for.
DRYING = """
import json, os, sys, threading, time
import tidemill
from tidemill import _native
from tidemill.run_file import ResolvedRun, to_arguments

run, stop = ResolvedRun(sys.argv[1]), threading.Event()


class Drying:
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


encoders = Drying()
result = tidemill.train(run, mode="online", encoders=encoders, stop=stop)
with open(f"{sys.argv[2]}/wanted-{os.environ['RANK']}.json", "w") as file:
    json.dump(encoders.wanted, file)
if os.environ["RANK"] == "0":
    print("result:", json.dumps(result))
"""


def test_a_killed_worker_costs_no_row(trained_online, scenes, tmp_path, rng):
    run = online.training(tmp_path, scenes, "2")
    run.reaches(rng.randrange(6, 18))
    os.kill(rng.choice(sorted(run.workers().values())), signal.SIGKILL)
    code, result = run.end()
    assert code == 0, run.said
    assert len(result["faults"]) == 1, run.said
    online.assert_same(tmp_path, trained_online)


def test_other_numbers_of_workers_go_on(scenes, tmp_path):
    """What each rank had before it is dealt out anew; the lanes' own tests count the rows."""
    for workers, steps in [(2, 7), (3, 15), (1, 20)]:
        phase = [{"resolution": 64, "steps": steps}]
        run = online.training(tmp_path, scenes, str(workers), **{"train.phase": phase})
        code, result = run.end()
        assert code == 0, run.said
        assert result["steps"] == steps
        commit = json.loads((tmp_path / f"checkpoints/step-{steps:08}/commit.json").read_text())
        assert len(commit["progress"]["stream"]["lanes"]) == workers
    assert np.isfinite(ranks.losses(tmp_path)).all()


def test_ranks_that_wait_for_rows_save_what_they_have(trained_online, scenes, tmp_path):
    """Also those that have theirs already: none begins with a step before all can."""
    settings = {"source.uri": scenes, "train.stream.stall_seconds": 4, "output": str(tmp_path)}
    run = resolve({**ranks.SETTINGS, **online.SETTINGS, **settings})
    launch = [*ranks.TORCHRUN, "--standalone", "--nproc-per-node=2", "--no-python"]
    script = tmp_path / "drying.py"
    script.write_text(DRYING)
    code, said = ranks.together([[*launch, sys.executable, str(script), run.text, str(tmp_path)]])
    assert code == 0, said
    result = json.loads(said.split("result: ")[1].splitlines()[0])
    assert not result["finished"], said
    assert 0 < result["steps"] < online.STEPS, said
    waits = [line for line in said.splitlines() if "has waited for data" in line]
    assert waits, said
    assert all(line.startswith("rank 1: ") for line in waits), "the first rank has its rows"
    assert (tmp_path / f"checkpoints/step-{result['steps']:08}/commit.json").exists()
    # Windows of two units are dealt out in turn.
    wanted = [json.loads((tmp_path / f"wanted-{rank}.json").read_text()) for rank in range(2)]
    lanes = [{unit for unit, epoch, _ in asked if epoch == 0} for asked in wanted]
    assert [len(units) for units in lanes] == [4, 4]
    assert len(set.union(*lanes)) == len(glob(scenes)) == 8
    run = online.training(tmp_path, scenes, "2")
    code, result = run.end()
    assert code == 0, run.said
    online.assert_same(tmp_path, trained_online)
