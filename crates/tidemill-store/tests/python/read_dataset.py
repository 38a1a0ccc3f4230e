"""Runs the recipe of docs/dataset-format.md on a dataset and compares with what was written.

Usage: read_dataset.py <dataset-format.md> <folder with dataset/, expected.json and *.latents, *.text>
"""

import json
import re
import sys
from pathlib import Path

import duckdb
import numpy as np

page, folder = Path(sys.argv[1]).read_text(), Path(sys.argv[2])
recipe = {}
exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), recipe)

root = folder / "dataset"
expected = json.loads((folder / "expected.json").read_text())
units = recipe["units"](root)

rows = recipe["rows"](root, units)
status = rows["status"].to_pylist()
assert len(status) == expected["rows"]["read"]
assert status.count("kept") == expected["rows"]["kept"] == sum(unit["counts"]["kept"] for unit in units)
assert status.count("rejected") == sum(expected["rows"]["rejected"].values())

spec = recipe["spec"](root)
compared = 0
for group, ids in expected["tensors"].items():
    split, resolution = ("validation-" if "validation" in group else ""), group.rsplit("-", 1)[1]
    latents = recipe["tensors"](root, units, group)
    text = recipe["tensors"](root, units, f"{split}text")
    assert list(latents) == ids, group
    stacked = np.stack([latents[i] for i in ids])
    joined = np.stack([text[i] for i in ids])
    assert list(stacked.shape[1:]) == spec["latents"][resolution]["shape"]
    assert stacked.dtype == np.float16
    assert list(joined.shape[1:]) == spec["text"]["shape"]
    assert stacked.tobytes() == (folder / f"{group}.latents").read_bytes(), group
    assert joined.tobytes() == (folder / f"{group}.text").read_bytes(), group
    compared += len(ids)

# The places named in the manifest hold the same values as Parquet's own reader finds.
for unit in units:
    for file in unit["files"]:
        if file["group"] != "rows":
            direct = recipe["tensors_by_offset"](root, spec, file)
            parquet = recipe["tensors"](root, [unit], file["group"])
            assert direct.keys() == parquet.keys()
            assert all((direct[i] == parquet[i]).all() for i in direct)

empty = recipe["empty_caption"](root, spec)
assert list(empty.shape) == spec["text"]["shape"]

# DuckDB joins a group with its rows.
for unit in units:
    paths = {file["group"]: str(root / file["path"]) for file in unit["files"]}
    if "latents-64" not in paths:
        continue
    query = f"""
        select count(*), count(*) filter (rows.sample_id = latents.sample_id and status = 'kept'),
               min(octet_length(latents_64)), max(octet_length(latents_64))
        from read_parquet('{paths["latents-64"]}') latents
        join (select *, file_row_number from read_parquet('{paths["rows"]}', file_row_number = true)) rows
          on rows.file_row_number = latents.row
    """
    count, right, least, most = duckdb.sql(query).fetchall()[0]
    assert count == right == next(f["rows"] for f in unit["files"] if f["group"] == "latents-64")
    assert least == most == 2 * np.prod(spec["latents"]["64"]["shape"])

# And the manifest, which is Parquet like everything else.
manifest = str(max((root / "manifest").iterdir(), key=lambda path: int(path.stem)))
((read,),) = duckdb.sql(f"select sum(counts.read) from read_parquet('{manifest}')").fetchall()
assert read == expected["rows"]["read"]
print(f"{compared} latents and embeddings of {len(units)} units are the bytes that were written")
