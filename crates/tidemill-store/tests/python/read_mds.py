"""Reads exported MDS folders with MosaicML's own reader and compares them with what they were made from.

Usage: read_mds.py again <original> <exported>
       read_mds.py moments <dataset-format.md> <dataset> <exported means> <exported samples> <factor>
"""

import re
import sys
from pathlib import Path

import numpy as np
from streaming import LocalDataset, StreamingDataset


def stream(folder):
    """The samples of a folder in their order, hashes checked, shards decompressed by the reader."""
    dataset = StreamingDataset(local=folder, batch_size=1, shuffle=False, validate_hash="xxh64")
    return [dataset[i] for i in range(len(dataset))]


def half(value):
    return np.frombuffer(value, np.float16)


def within_an_ulp(found, expected):
    """Whether values differ by no more than one more rounding allows."""
    expected = np.asarray(expected, np.float64)
    ulp = np.spacing(np.abs(expected).astype(np.float16)).astype(np.float64)
    return (np.abs(found.astype(np.float64) - expected) <= ulp).all()


def again(original, exported):
    """Samples that were imported from MDS and exported to MDS have not changed."""
    before = {sample["key"]: sample for sample in LocalDataset(original)}
    after = stream(exported)
    assert len({sample["key"] for sample in after}) == len(after) > 0
    for sample in after:
        old = before[sample["key"]]
        for name in ["key", "caption", "width", "height", "caption_latents"]:
            assert sample[name] == old[name], (name, sample[name], old[name])
        for name in ["latents_256", "latents_512"]:
            assert within_an_ulp(half(sample[name]), half(old[name])), name


def moments(page, dataset, means, samples, factor):
    """Means and samples are those of the moments that the documented recipe finds in the dataset."""
    recipe = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", Path(page).read_text(), re.DOTALL)), recipe)
    root, factor = Path(dataset), np.float32(factor)
    units = recipe["units"](root)
    rows = {row["sample_id"]: row for row in recipe["rows"](root, units).to_pylist()}
    text = recipe["tensors"](root, units, "text")
    latents = {r: recipe["tensors"](root, units, f"latents-{r}") for r in (64, 128)}
    for kind, folder in [("mean", means), ("sample", samples)]:
        found = stream(folder)
        assert [sample["sample_id"] for sample in found] == list(text)
        for sample in found:
            i = int(sample["sample_id"])
            assert (sample["key"], sample["caption"]) == (rows[i]["key"], rows[i]["caption"] or "")
            assert (sample["width"], sample["height"]) == (0, 0)
            assert sample["caption_latents"] == text[i].tobytes()
            for r, stored in latents.items():
                latent = half(sample[f"latents_{r}"])
                if i not in stored:
                    assert len(latent) == 0
                    continue
                mean, log_variance = np.split(stored[i].astype(np.float32).ravel(), 2)
                if kind == "mean":
                    assert latent.tobytes() == (mean * factor).astype(np.float16).tobytes()
                else:
                    noise = (i % 1009 + np.arange(len(mean))) / 1009 - 0.5
                    value = mean + np.exp(log_variance.astype(np.float64) / 2) * noise
                    assert within_an_ulp(latent, value * factor)


{"again": again, "moments": moments}[sys.argv[1]](*sys.argv[2:])
