"""`make soak` names rows that are lost, doubled or have another outcome, and measures work without starts."""

import dataclasses

import numpy as np
import pytest
import tidemill

from benches import soak, soak_check
from benches.runner import BenchError
from benches.soak_machine import Machine, Pause, Work
from benches.soak_pairs import FAULTS, draw_pairs, write_run_file
from benches.soak_run import Commit


@pytest.fixture(scope="module")
def preprocessed(tmp_path_factory):
    """The dataset of a few pairs, and the pairs."""
    folder = tmp_path_factory.mktemp("soak")
    vocabulary = soak.MODELS / "tokenizer" / "vocab.json"
    pairs = draw_pairs(
        folder / "pairs", rows=600, rows_per_unit=100, seed=1, distinct=8, vocabulary=vocabulary
    )
    write_run_file(folder / "run.toml", pairs, folder / "out", soak.SETTINGS)
    result = tidemill.preprocess(folder / "run.toml")
    assert result["units"]["total"] == pairs.units == 6
    return folder / "out/dataset", pairs


def test_rows_with_the_drawn_outcomes_pass(preprocessed):
    dataset, pairs = preprocessed
    assert np.sum(pairs.faults >= 0) > 0
    soak_check.check_dataset(dataset, pairs)


def test_row_with_another_outcome_is_named(preprocessed):
    dataset, pairs = preprocessed
    row = int(np.flatnonzero(pairs.faults < 0)[0])
    faults = pairs.faults.copy()
    faults[row] = len(FAULTS) - 1
    with pytest.raises(BenchError, match=f"1 rows .* row {row}: kept, not rejected opt_out.domains"):
        soak_check.check_dataset(dataset, dataclasses.replace(pairs, faults=faults))


def test_lost_and_doubled_rows_are_named():
    with pytest.raises(BenchError, match=r"lost \[2\], unexpected \[\]"):
        soak_check.check_same("rows", np.array([0, 1, 1]), np.array([0, 1, 2]))


def test_rate_leaves_out_the_start_of_a_process():
    """The second process starts for a minute, and is then as fast as the first."""
    commits = [Commit(at=float(at), process=0, rows=10) for at in range(10)]
    commits += [Commit(at=60.0 + at, process=1, rows=10) for at in range(10)]
    parts = soak.measure_parts(commits, Machine([Pause(-2, -1, speed=5)]), 4)
    assert [(part.done, part.rows_per_second) for part in parts] == [(25, 10), (75, 10), (125, 10), (175, 10)]


def test_rate_at_the_same_speed_of_the_machine_is_flat():
    """The machine gets half as fast after 5 s. The process is stopped for a second before and after that."""
    commits = [Commit(at=float(at), process=0, rows=10) for at in (0, 1, 2, 4, 5, 7, 10, 12, 14, 16)]
    machine = Machine([Pause(2, 3, speed=8), Pause(7, 8, speed=4)])
    first, last = soak.measure_parts(commits, machine, 2)
    assert (first.rows, first.work) == (40, Work(seconds=4, convolutions=32))
    assert (last.rows, last.work) == (50, Work(seconds=10, convolutions=40))
    assert first.rows_per_convolution == last.rows_per_convolution
