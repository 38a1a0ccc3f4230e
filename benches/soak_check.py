"""Compares a dataset, row by row, with the outcomes that its pairs were drawn with."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benches.runner import BenchError
from benches.soak_pairs import KEPT, Pairs


def check_dataset(dataset: Path, pairs: Pairs) -> None:
    """Each row is there once, with the outcome that was drawn; each kept one has its tensors once.

    Raises `BenchError` with the first rows that differ.
    """
    rows = pa.concat_tables(read_files(dataset, "rows", ["key", "sample_id", "status", "reason"]))
    numbers = rows["key"].cast(pa.int64()).to_numpy()
    check_same("rows", np.sort(numbers), np.arange(pairs.rows))
    ids = rows["sample_id"].to_numpy()
    check_same("sample ids", np.unique(ids), np.sort(ids))
    outcomes = name_outcomes(rows["status"], rows["reason"])
    wanted = pairs.outcomes[numbers]
    differing = np.flatnonzero(outcomes != wanted)
    if len(differing):
        shown = [f"row {numbers[i]}: {outcomes[i]}, not {wanted[i]}" for i in differing[:10]]
        raise BenchError(f"{len(differing)} rows have another outcome: " + "; ".join(shown))
    kept = np.sort(ids[outcomes == KEPT])
    for group in ("latents-32", "text"):
        tensors = pa.concat_tables(read_files(dataset, group, ["sample_id"]))
        check_same(group, np.sort(tensors["sample_id"].to_numpy()), kept)


def read_files(dataset: Path, group: str, columns: list[str]) -> Iterator[pa.Table]:
    """Columns of a group's files that the newest manifest names."""
    newest = max((dataset / "manifest").iterdir(), key=lambda path: int(path.stem))
    for unit in pq.read_table(newest, columns=["files"])["files"].to_pylist():
        for file in unit:
            if file["group"] == group:
                yield pq.read_table(dataset / file["path"], columns=columns)


def name_outcomes(status: pa.ChunkedArray, reason: pa.ChunkedArray) -> np.ndarray:
    """The status and, behind it, the filter or the kind of error."""
    kind = pc.replace_substring_regex(reason.cast(pa.string()), ":.*", "")
    named = pc.binary_join_element_wise(status.cast(pa.string()), kind, " ", null_handling="skip")
    return named.to_numpy(zero_copy_only=False).astype(str)


def check_same(what: str, found: np.ndarray, wanted: np.ndarray) -> None:
    """Raises `BenchError` unless two sorted arrays are equal."""
    if not np.array_equal(found, wanted):
        lost, more = np.setdiff1d(wanted, found), np.setdiff1d(found, wanted)
        raise BenchError(
            f"{what}: {len(found)} in place of {len(wanted)}; lost {lost[:5]}, unexpected {more[:5]}"
        )


def check_counts(source: str, found: Mapping, pairs: Pairs) -> None:
    """The counts that a verb reports are those that were drawn, and add up to the rows.

    Raises `BenchError` if they are not.
    """
    counts = Counter({KEPT: found["kept"]})
    for status in ("rejected", "quarantined"):
        counts.update({f"{status} {reason}": rows for reason, rows in found[status].items()})
    wanted = pairs.count_outcomes()
    if counts != wanted or found["read"] != pairs.rows or counts.total() != pairs.rows:
        raise BenchError(f"{source} counts {found['read']} rows, {dict(counts)}; drawn were {wanted}")
