"""Pairs for the tests of engines, and the datasets that engines make of them."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from helpers.training import ASSETS


def encode_noise(rng, width, height):
    """A JPEG of noise."""
    file = io.BytesIO()
    Image.frombytes("RGB", (width, height), rng.randbytes(3 * width * height)).save(file, "JPEG")
    return file.getvalue()


def write_pairs(folder, rng, files, rows):
    """Writes noise images in row groups of 25; some are damaged, too small or have no caption."""

    def image(side):
        return encode_noise(rng, rng.randrange(side, side + 60), rng.randrange(side, side + 60))

    for number in range(files):
        images = [image(20 if rng.random() < 0.1 else 64) for _ in range(rows)]
        captions = [f"picture {number} {i}" for i in range(rows)]
        images[rng.randrange(rows)] = b"no image"
        captions[rng.randrange(rows)] = None
        keys = [f"{number}-{i}" for i in range(rows)]
        table = pa.table({"key": keys, "jpg": images, "caption": captions})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=25)


def pairs_settings(run, folder):
    """A run file's content for the pairs in a folder, with units of 25 rows."""
    engine = {"device": "cpu", "encode": {"threads": 1}}
    source = {"uri": f"{folder}/*.parquet", "rows_per_unit": 25, "columns": run["source"]["columns"]}
    return {**run, "engine": engine, "source": source, "validation": {"share": 0.1}}


def keyed_settings(folder, output, batch_size=8, **more):
    """A run over the columns `key`, `jpg` and `caption` of `pairs.parquet`, with units of 20 rows."""
    columns = {"image": "jpg", "caption": "caption", "key": "key"}
    return {
        "output": str(folder / output),
        "source": {"uri": str(folder / "pairs.parquet"), "columns": columns, "rows_per_unit": 20},
        "prepare": {"resolutions": [64]},
        "models": {"path": str(ASSETS)},
        "encode": {"batch_size": batch_size},
        "engine": {"device": "cpu"},
        **more,
    }


def read_rows(output):
    """All rows of the newest snapshot, by key."""
    tables = [tables["rows.parquet"] for _, tables in read_dataset(output).values()]
    return {row["key"]: row for table in tables for row in table.to_pylist()}


def read_dataset(output):
    """The newest snapshot's counts and tables, by unit and file."""
    dataset = output / "dataset"
    newest = max(dataset.glob("manifest/*.parquet"))
    found = {}
    for unit in pq.read_table(newest, columns=["id"]).column("id").to_pylist():
        commit = json.loads((dataset / f"commits/{unit}.json").read_text())
        folder = dataset / f"data/{unit}/{commit['attempt']}"
        tables = {path.name: pq.read_table(path) for path in sorted(folder.glob("*.parquet"))}
        found[unit] = (commit["counts"], tables)
    return found


def assert_same_dataset(a, b):
    """Two outputs have datasets with the same content, metadata included."""
    ours, theirs = read_dataset(a), read_dataset(b)
    assert ours.keys() == theirs.keys()
    for unit, (counts, tables) in ours.items():
        assert counts == theirs[unit][0], unit
        assert tables.keys() == theirs[unit][1].keys(), unit
        for name, table in tables.items():
            assert table.equals(theirs[unit][1][name], check_metadata=True), (unit, name)
