"""Preprocessing on Ray: the same dataset as the local engine's, also if processes die."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import ray
import tidemill
import tidemill.ray
from helpers import pairs, processes, ray_cluster
from tidemill import _native
from tidemill.run_file import to_arguments

WHOLE = {"batch_size": None, "batch_format": "pyarrow"}


@pytest.fixture(scope="module")
def cluster():
    """The address of a cluster of one node."""
    with ray_cluster.start_cluster(4) as address:
        yield address


def on_cluster(cluster, **encode):
    return {"engine.kind": "ray", "engine.ray.address": cluster, **encode}


def test_preprocess_on_ray_matches_local_engine(cluster, pairs_run, encoded_pairs, tmp_path):
    output, expected = encoded_pairs
    # An autoscaling pool of up to two encoders.
    result = tidemill.preprocess(
        pairs_run, output=str(tmp_path), **on_cluster(cluster, **{"engine.encode.workers": "1..2"})
    )
    assert result["rows"] == expected["rows"]
    assert result["units"] == {"total": 16, "done": 16}
    assert result["quarantined"] == expected["quarantined"]
    pairs.assert_same_dataset(tmp_path, output)
    again = tidemill.preprocess(pairs_run, output=str(tmp_path), **on_cluster(cluster))
    assert again["units"] == {"total": 16, "done": 0}


def test_recipe_in_docs_reads_a_dataset_with_ray_data(cluster, pairs_run, tmp_path):
    page = Path(__file__).resolve().parent.parent / "docs" / "dataset-format.md"
    # Named as what Ray takes to its workers with it.
    recipe = {"__name__": "__main__"}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)), recipe)
    tidemill.preprocess(pairs_run, output=str(tmp_path), **{"encode.embeddings": "f8"})
    root = tmp_path / "dataset"
    units = recipe["units"](root)
    for group in ("latents-64", "text"):
        rows = recipe["ray_dataset"](root, units, group).iter_rows()
        found = {row["sample_id"]: row["array"] for row in rows}
        # Other tests compare these with what was written.
        direct = recipe["tensors"](root, units, group)
        assert found.keys() == direct.keys() != set()
        assert all((found[i] == direct[i]).all() for i in found), group


def test_stages_in_pipeline_match_local_engine(cluster, pairs_run, encoded_pairs, tmp_path):
    output, expected = encoded_pairs
    run = tidemill.ray.resolve(pairs_run, output=str(tmp_path))
    rows = tidemill.ray.read(run)
    prepared = rows.map_batches(tidemill.ray.Prepare(run), **WHOLE)
    encoded = tidemill.ray.encode(prepared, run, concurrency=1)
    written = tidemill.ray.write_latents(encoded, run)
    assert written == {"units": 16, "rows": expected["rows"]}
    pairs.assert_same_dataset(tmp_path, output)


def test_write_latents_accepts_rows_of_own_pipeline(cluster, run, batch, tmp_path):
    run = tidemill.ray.resolve(run, output=str(tmp_path), **{"source.carry": []})
    rows = ray.data.from_arrow(pa.Table.from_batches([batch])).filter(lambda row: row["key"] != "k1")
    prepared = rows.map_batches(tidemill.ray.Prepare(run), **WHOLE)
    encoded = prepared.map_batches(tidemill.ray.Encode, fn_constructor_args=(run,), concurrency=1, **WHOLE)
    written = tidemill.ray.write_latents(encoded, run)
    assert written["rows"] == {"read": 19, "kept": 16, "rejected": 1, "quarantined": 2}
    commits = set((tmp_path / "dataset/commits").iterdir())
    assert tidemill.ray.write_latents(encoded, run) == written
    assert set((tmp_path / "dataset/commits").iterdir()) == commits
    captions = [
        caption
        for _, tables in pairs.read_dataset(tmp_path).values()
        for caption in tables["rows.parquet"].column("caption").to_pylist()
    ]
    assert sorted(captions, key=str) == sorted(
        [f"picture {i}" for i in range(20) if i not in (1, 5)] + [None], key=str
    )


def test_incomplete_or_merged_units_are_refused(cluster, pairs_run, tmp_path):
    run = tidemill.ray.resolve(pairs_run, output=str(tmp_path))
    rows = tidemill.ray.read(run)
    prepared = rows.map_batches(tidemill.ray.Prepare(run), **WHOLE)

    def encoded(prepared):
        return prepared.map_batches(tidemill.ray.Encode, fn_constructor_args=(run,), concurrency=1, **WHOLE)

    for broken, message in [
        (encoded(prepared.filter(expr="status == 'kept'")), "rows of"),
        (encoded(prepared.repartition(2)), "several units"),
        (rows.map_batches(tidemill.ray.Prepare(run), batch_size=None), 'batch_format="pyarrow"'),
    ]:
        with pytest.raises(ray.exceptions.RayTaskError, match=message):
            tidemill.ray.write_latents(broken, run)
    # A unit that lost no row may have been committed.
    for commit in (tmp_path / "dataset").glob("commits/*"):
        assert json.loads(commit.read_text())["counts"]["read"] == 25


def test_rows_encoded_by_other_models_are_refused(cluster, pairs_run, tmp_path):
    run = tidemill.ray.resolve(pairs_run, output=str(tmp_path))
    models = tmp_path / "models"
    shutil.copytree(run["models"]["path"], models)
    # Like on a node whose folder is outdated.
    config = models / "vae" / "config.json"
    config.write_text(config.read_text() + "\n")
    other = tidemill.ray.resolve(pairs_run, output=str(tmp_path), **{"models.path": str(models)})
    prepared = tidemill.ray.read(run).map_batches(tidemill.ray.Prepare(run), **WHOLE)
    encoded = tidemill.ray.encode(prepared, other, concurrency=1)
    with pytest.raises(ray.exceptions.RayTaskError, match="another VAE than where the run was started"):
        tidemill.ray.write_latents(encoded, run)
    assert not list((tmp_path / "dataset").glob("commits/*"))


def test_refused_input_raises_like_local_engine(cluster, pairs_run, tmp_path):
    with pytest.raises(tidemill.InputError, match="no column"):
        tidemill.preprocess(
            pairs_run, output=str(tmp_path), **on_cluster(cluster), **{"source.columns.image": "picture"}
        )
    strict = on_cluster(cluster, **{"engine.max_bad_fraction": 0.001})
    # In the second run all units are committed already.
    for _ in range(2):
        with pytest.raises(tidemill.TidemillError, match=r"unreadable, more than engine.max_bad_fraction"):
            tidemill.preprocess(pairs_run, output=str(tmp_path), **strict)


@pytest.mark.timeout(120)
def test_encoder_that_refuses_to_start_ends_run(cluster, pairs_run, tmp_path):
    """The run ends with the encoder's message, although the verb's own models are intact."""
    models = tmp_path / "models"
    shutil.copytree(pairs_run["models"]["path"], models)
    run = tidemill.resolve(pairs_run, output=str(tmp_path), **{"models.path": str(models)})
    ticket = _native.ticket(*to_arguments(run, {}))
    units = _native.units(*to_arguments(run, {}))
    (models / "vae/diffusion_pytorch_model.safetensors").unlink()
    plan = {"cluster": {"address": cluster, "env": {}}, "lines": len(units), "ticket": ticket}
    plan["prepare"] = {"most": 0, "cpus": 1}
    plan["encode"] = {"fewest": 1, "most": 1, "cpus": 1, "gpus": 0, "accelerator": None}
    # Standard input stays open: end of file means that the verb has died.
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-m", "tidemill.ray.preprocess.driver"], **pipes) as driver:
        driver.stdin.write("".join(f"{line}\n" for line in [json.dumps(plan), *units]))
        driver.stdin.flush()
        log = driver.stdout.readlines()[-1]
    error = json.loads(log)["error"]
    assert error["refused"], error
    node = ray.util.get_node_ip_address()
    assert error["message"].startswith(f"an encoder on {node} refuses to start: "), error
    assert str(models) in error["message"]


def test_killed_preprocess_driver_is_restarted(cluster, pairs_run, encoded_pairs, tmp_path):
    output, expected = encoded_pairs
    running = processes.VerbProcess("preprocess", pairs_run, output=str(tmp_path), **on_cluster(cluster))
    victim = processes.find_child(running.process.pid, "ray.preprocess.driver")
    running.wait_for_commits(tmp_path, 1)
    os.kill(victim, signal.SIGKILL)
    result, log = running.succeed(seconds=200)
    assert result["rows"] == expected["rows"]
    assert "restarting it for the remaining units" in log
    pairs.assert_same_dataset(tmp_path, output)
