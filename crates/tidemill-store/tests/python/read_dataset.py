"""Runs the recipe of docs/dataset-format.md on datasets and compares with what was written.

Usage: read_dataset.py <dataset-format.md> <folder>...

A folder has dataset/, expected.json, *.latents, *.text and *.written.
"""

import json
import re
import sys
from pathlib import Path

import duckdb
import numpy as np
import torch

page = Path(sys.argv[1]).read_text()
recipe = {}
exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), recipe)


def check_float8(stored, ids, given, joined):
    """Torch rounds to the same bytes, and the error of each row is what the row says."""
    for i, row, rounded in zip(ids, given, joined, strict=True):
        scale, error = np.frombuffer(stored[i], np.float32, 2)
        exact = torch.from_numpy(row.astype(np.float32)) / float(scale)
        elements = exact.to(torch.float8_e4m3fn)
        assert stored[i][8:] == elements.view(torch.uint8).numpy().tobytes()
        difference = np.linalg.norm(rounded.astype(np.float64) - row.astype(np.float64))
        assert abs(error - difference / np.linalg.norm(row.astype(np.float64))) < 1e-6
        assert 0 < error < 1 / 16


def check_rows(rows, units, expected):
    """Every row is there once, with its status."""
    status = rows["status"].to_pylist()
    assert len(status) == expected["rows"]["read"]
    assert status.count("kept") == expected["rows"]["kept"] == sum(unit["counts"]["kept"] for unit in units)
    assert status.count("rejected") == sum(expected["rows"]["rejected"].values())


def check_tensors(folder, root, units, spec, rows, expected):
    """The arrays of every group are those that were written; returns their number."""
    assert {"latents-64", "latents-64-128x32", "validation-latents-64-32x128"} < expected["tensors"].keys()
    sizes = dict(zip(rows["sample_id"].to_pylist(), rows["size_64"].to_pylist(), strict=True))
    compared = 0
    for group, ids in expected["tensors"].items():
        split, _, bucket = group.rpartition("latents-")
        latents = recipe["tensors"](root, units, group)
        text = recipe["tensors"](root, units, f"{split}text")
        assert list(latents) == ids, group
        stacked = np.stack([latents[i] for i in ids])
        joined = np.stack([text[i] for i in ids])
        assert list(stacked.shape[1:]) == spec["latents"][bucket]["shape"]
        assert stacked.dtype == np.float16
        assert list(joined.shape[1:]) == spec["text"]["shape"]
        assert stacked.tobytes() == (folder / f"{group}.latents").read_bytes(), group
        assert joined.tobytes() == (folder / f"{group}.text").read_bytes(), group
        written = (folder / f"{group}.written").read_bytes()
        if spec["text"]["dtype"] == "f8_e4m3":
            given = np.frombuffer(written, np.float16).reshape(joined.shape)
            check_float8(recipe["stored"](root, units, f"{split}text"), ids, given, joined)
        else:
            assert joined.tobytes() == written, group
        if bucket.startswith("64"):
            size = [64, 64] if bucket == "64" else [int(side) for side in bucket[3:].split("x")]
            assert all(sizes[i] == size for i in ids), group
        compared += len(ids)
    return compared


def check_offsets(root, units, spec):
    """The places named in the manifest hold the same values as Parquet's own reader finds."""
    for unit in units:
        for file in unit["files"]:
            if file["group"] != "rows":
                assert (root / file["path"]).stat().st_size == file["bytes"]
                direct = recipe["tensors_by_offset"](root, spec, file)
                parquet = recipe["tensors"](root, [unit], file["group"])
                assert direct.keys() == parquet.keys()
                assert all((direct[i] == parquet[i]).all() for i in direct)
    empty = recipe["empty_caption"](root, spec)
    assert list(empty) == ["text", "text_2", "pooled_2"]
    assert list(empty["text_2"].shape) == spec["more_text"]["text_2"]["shape"]


def check_duckdb(root, units, spec, expected):
    """DuckDB joins a group with its rows, and reads the manifest: it is Parquet like all other files."""
    for unit in units:
        paths = {file["group"]: str(root / file["path"]) for file in unit["files"]}
        for bucket, form in spec["latents"].items():
            group, column = f"latents-{bucket}", f"latents_{bucket.split('-')[0]}"
            if group not in paths:
                continue
            query = f"""
                select count(*), count(*) filter (rows.sample_id = latents.sample_id and status = 'kept'),
                       min(octet_length({column})), max(octet_length({column}))
                from read_parquet('{paths[group]}') latents
                join (
                    select *, file_row_number
                    from read_parquet('{paths["rows"]}', file_row_number = true)
                ) rows
                  on rows.file_row_number = latents.row
            """
            count, right, least, most = duckdb.sql(query).fetchall()[0]
            assert count == right == next(f["rows"] for f in unit["files"] if f["group"] == group)
            assert least == most == 2 * np.prod(form["shape"])
            rebuilt = duckdb.sql(f"select sample_id, {column} from read_parquet('{paths[group]}')").fetchall()
            direct = recipe["tensors"](root, [unit], group)
            assert [sample for sample, _ in rebuilt] == list(direct)
            for sample, values in rebuilt:
                assert (np.frombuffer(values, np.float16).reshape(form["shape"]) == direct[sample]).all(), (
                    group
                )
    manifest = str(max((root / "manifest").iterdir(), key=lambda path: int(path.stem)))
    ((read,),) = duckdb.sql(f"select sum(counts.read) from read_parquet('{manifest}')").fetchall()
    assert read == expected["rows"]["read"]


def check_dataset(folder):
    root = folder / "dataset"
    expected = json.loads((folder / "expected.json").read_text())
    units, spec = recipe["units"](root), recipe["spec"](root)
    rows = recipe["rows"](root, units)
    check_rows(rows, units, expected)
    compared = check_tensors(folder, root, units, spec, rows, expected)
    check_offsets(root, units, spec)
    check_duckdb(root, units, spec, expected)
    print(f"{compared} latents and embeddings of {len(units)} units are the bytes that were written")


for folder in sys.argv[2:]:
    check_dataset(Path(folder))
