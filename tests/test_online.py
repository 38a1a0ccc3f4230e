"""Workers that train on pairs as they come: whatever happens, the rows are those that would have come."""

import json
import os
import signal

import numpy as np
import online
import ranks


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
