"""`caption.stage`: a captioner of the user's replaces captions in preprocessing."""

import io
import json
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tidemill
from helpers.pairs import encode_noise, keyed_settings, read_dataset, read_rows
from PIL import Image

ROWS, SIDE = 60, 40
# It keeps two captions, fails on a row, and its process dies once.
CAPTIONER = """
import json, os
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
print("what it prints does no harm")

class Captioner:
    def __call__(self, images, captions, keys):
        if "7" in keys and not (FOLDER / "died").exists():
            (FOLDER / "died").touch()
            os._exit(3)
        if "13" in keys:
            raise ValueError("no words for it")
        for image, key in zip(images, keys):
            np.save(FOLDER / f"{key}.npy", image)
        with (FOLDER / "seen").open("a") as file:
            file.write("".join(f"{key}\\n" for key in keys))
        return [None if key == "5" else " " if key == "6" else f"seen {key}, was {caption}"
                for key, caption in zip(keys, captions)]

def miscount(images, captions, keys):
    return []
"""


@pytest.fixture
def folder(tmp_path, rng, monkeypatch):
    """Pairs, and the captioner in a module that Python finds."""
    images = [encode_noise(rng, rng.randrange(64, 120), rng.randrange(64, 120)) for _ in range(ROWS)]
    table = {
        "key": [str(i) for i in range(ROWS)],
        "jpg": images,
        "caption": [f"picture {i}" for i in range(ROWS)],
    }
    pq.write_table(pa.table(table), tmp_path / "pairs.parquet", row_group_size=20)
    (tmp_path / "my_captions.py").write_text(CAPTIONER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def settings(folder, output, captioner="my_captions:Captioner", **more):
    caption = {"stage": captioner, "stage_size": SIDE}
    return keyed_settings(folder, output, **{"caption": caption, **more})


def read_seen(folder):
    """The keys that the captioner got since the last call."""
    seen = (folder / "seen").read_text().split() if (folder / "seen").exists() else []
    (folder / "seen").unlink(missing_ok=True)
    return seen


def read_texts(output):
    """Text embeddings by sample id."""
    tables = [tables["text.parquet"] for _, tables in read_dataset(output).values()]
    pairs = [
        zip(table["sample_id"].to_pylist(), table.column(3).to_pylist(), strict=True) for table in tables
    ]
    return dict(chain.from_iterable(pairs))


def test_captioner_replaces_captions_once(folder):
    tidemill.preprocess(settings(folder, "out"))
    rows, texts = read_rows(folder / "out"), read_texts(folder / "out")
    assert sorted(read_seen(folder), key=int) == [str(i) for i in range(ROWS) if i != 13]
    assert (folder / "died").exists()
    images = {row["key"]: row["jpg"] for row in pq.read_table(folder / "pairs.parquet").to_pylist()}
    for key, row in rows.items():
        if key == "13":
            assert row["status"] == "quarantined"
            assert "no words for it" in row["reason"]
            continue
        old = f"picture {key}"
        assert row["caption"] == (old if key in ("5", "6") else f"seen {key}, was {old}")
        # It sees the middle of the image, as Pillow crops and resizes it.
        image = Image.open(io.BytesIO(images[key]))
        short, (width, height) = min(image.size), image.size
        left, top = (width - short) // 2, (height - short) // 2
        box = (left, top, left + short, top + short)
        square = image.resize((SIDE, SIDE), Image.BICUBIC, box)
        np.testing.assert_array_equal(np.load(folder / f"{key}.npy"), np.asarray(square))

    # The embeddings are those of pairs with such captions.
    table = pq.read_table(folder / "pairs.parquet").to_pydict()
    table["caption"] = [rows[key]["caption"] for key in table["key"]]
    pq.write_table(pa.table(table), folder / "captioned.parquet", row_group_size=20)
    plain = settings(folder, "plain", caption={})
    plain["source"]["uri"] = str(folder / "captioned.parquet")
    tidemill.preprocess(plain)
    plain_rows, plain_texts = read_rows(folder / "plain"), read_texts(folder / "plain")
    for key, row in rows.items():
        if row["status"] == "kept":
            ours = np.frombuffer(texts[row["sample_id"]], np.float16).astype(np.float32)
            theirs = np.frombuffer(plain_texts[plain_rows[key]["sample_id"]], np.float16).astype(np.float32)
            np.testing.assert_allclose(ours, theirs, atol=5e-3)

    # Another filter: what was made is kept. Then rows that were rejected are shown to it.
    tidemill.preprocess(settings(folder, "out", filter={"min_side": 90}))
    assert read_seen(folder) == []
    (folder / "my_captions.py").write_text(CAPTIONER.replace("seen {key}", "again {key}"))
    result = tidemill.preprocess(settings(folder, "out", filter={"min_side": 70}))
    sides = {key: min(row["width"], row["height"]) for key, row in rows.items() if key != "13"}
    accepted = {key for key, side in sides.items() if 70 <= side < 90}
    assert set(read_seen(folder)) == accepted
    assert result["this_run"]["encoded"]["captions"] == len(accepted)
    for key, row in read_rows(folder / "out").items():
        if row["status"] == "kept" and key not in ("5", "6"):
            assert row["caption"].startswith("again" if key in accepted else "seen")

    # Another version: all captions are made again, and no latents.
    newer = settings(folder, "out", filter={"min_side": 70})
    newer["caption"]["stage_version"] = "2"
    result = tidemill.preprocess(newer)
    assert set(read_seen(folder)) == {key for key, side in sides.items() if side >= 70}
    assert result["this_run"]["encoded"]["images"] == 0


@pytest.mark.parametrize(
    ("captioner", "message"),
    [
        ("my_captions", 'not of the form "module:callable"'),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("my_captions:missing", "has no attribute 'missing'"),
        ("my_captions:miscount", "it returned 0 captions for"),
    ],
)
def test_unusable_captioner_ends_the_run_with_its_error(folder, captioner, message):
    with pytest.raises((tidemill.InputError, tidemill.TidemillError), match=r"caption\.stage") as error:
        tidemill.preprocess(settings(folder, "out", captioner))
    assert message in json.dumps(str(error.value)).replace('\\"', '"')
