"""The native module: zero-copy stages over Arrow, verbs, errors, and the command line."""

import json
import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import tidemill
from tidemill import _native


def buffer_addresses(column):
    return [buffer.address for buffer in column.buffers()[1:] if buffer is not None]


def read_moments(batch, resolution):
    field = batch.schema.field(f"latents_{resolution}")
    shape = json.loads(field.metadata[b"shape"])
    assert field.metadata[b"dtype"] == b"f16"
    rows = [np.frombuffer(v, "<f2").reshape(shape) for v in batch.column(field.name).to_pylist() if v]
    return np.stack(rows).astype(np.float32)


def test_prepare_gives_every_row_a_status(run, batch):
    prepared = tidemill.Prepare(run)(batch)
    assert isinstance(prepared, pa.RecordBatch)
    status = prepared.column("status").to_pylist()
    expected = ["kept"] * 20
    expected[3] = expected[5] = "quarantined"
    expected[7] = "rejected"
    assert status == expected
    assert prepared.column("key").to_pylist() == batch.column("key").to_pylist()
    pixels, size = prepared.schema.field("pixels_64"), prepared.schema.field("size_64")
    assert (pixels.type, size.type) == (pa.large_binary(), pa.list_(pa.uint32(), 2))
    assert json.loads(pixels.metadata[b"shape"]) == [3, 64, 64]


def test_image_bytes_are_imported_without_copy(batch):
    seen = _native.buffer_addresses(batch)
    for name in batch.schema.names:
        assert seen[name] == buffer_addresses(batch.column(name)), name


def test_carried_columns_are_not_copied(run, batch):
    prepared = tidemill.Prepare(run)(batch)
    assert buffer_addresses(prepared.column("score")) == buffer_addresses(batch.column("score"))


def test_sliced_batch_gives_sliced_result(run, batch):
    prepare = tidemill.Prepare(run)
    whole, part = prepare(batch), prepare(batch.slice(10, 6))
    for name in ("key", "caption", "status", "pixels_64", "token_ids", "score"):
        assert part.column(name).to_pylist() == whole.column(name).to_pylist()[10:16], name


def test_prepare_returns_table_for_table(run, batch):
    prepare = tidemill.Prepare(run)
    table = pa.Table.from_batches([batch.slice(0, 8), batch.slice(8)])
    prepared = prepare(table)
    assert isinstance(prepared, pa.Table)
    assert prepared.column("pixels_32").to_pylist() == prepare(batch).column("pixels_32").to_pylist()
    empty = prepare(table.slice(0, 0))
    assert empty.num_rows == 0
    assert empty.schema == prepared.schema


def test_encode_returns_moments_and_text(run, batch):
    prepared = tidemill.Prepare(run)(batch)
    encoded = tidemill.Encode(run)(prepared)
    assert encoded.num_rows == 20
    assert "token_ids" not in encoded.schema.names
    assert "pixels_64" not in encoded.schema.names
    assert encoded.column("status").to_pylist() == prepared.column("status").to_pylist()
    kept = prepared.column("status").to_pylist().count("kept")
    assert encoded.schema.field("latents_64").type == pa.large_binary()
    assert encoded.column("size_64").to_pylist() == prepared.column("size_64").to_pylist()
    assert len(read_moments(encoded, 64)) == kept
    assert encoded.column("text").null_count == 20 - kept
    with pytest.raises(tidemill.TidemillError, match="pixels_64"):
        tidemill.Encode(run)(pa.record_batch({"status": ["kept"] * 20, "pixels_64": [b"x"] * 20}))


def test_bucketed_images_are_encoded_like_single_images(run, batch):
    run = run | {
        "prepare": {"resolutions": [64], "crop": "bucket", "flip": True},
        "encode": {"batch_size": 3},
    }
    prepared = tidemill.Prepare(run)(batch)
    encoded = tidemill.Encode(run)(prepared)
    assert b"shape" not in encoded.schema.field("latents_64").metadata
    sizes = encoded.column("size_64").to_pylist()
    assert len({tuple(size) for size in sizes if size}) > 1
    alone = tidemill.Encode(run | {"encode": {"batch_size": 1}})(prepared)
    for size, together, single in zip(
        sizes, encoded.column("latents_64").to_pylist(), alone.column("latents_64").to_pylist(), strict=True
    ):
        assert (size is None) == (together is None) == (single is None)
        if size:
            ours, expected = (np.frombuffer(v, "<f2").astype(np.float32) for v in (together, single))
            assert ours.shape == expected.shape
            assert np.abs(ours - expected).max() <= 1e-2 * np.abs(expected).max()


def test_encode_agrees_with_diffusers_and_transformers(run, batch):
    import torch
    from diffusers import AutoencoderKL
    from diffusers.image_processor import VaeImageProcessor
    from PIL import Image
    from transformers import CLIPTextModel

    prepared = tidemill.Prepare(run)(batch)
    encoded = tidemill.Encode(run)(prepared)
    models = run["models"]["path"]
    vae = AutoencoderKL.from_pretrained(f"{models}/vae", torch_dtype=torch.float32)
    text_encoder = CLIPTextModel.from_pretrained(f"{models}/text_encoder", torch_dtype=torch.float32)
    kept = [i for i, status in enumerate(prepared.column("status").to_pylist()) if status == "kept"]
    with torch.no_grad():
        for resolution in (64, 32):
            pixels = [prepared.column(f"pixels_{resolution}")[i].as_py() for i in kept]
            chw = [np.frombuffer(p, np.uint8).reshape(3, resolution, resolution) for p in pixels]
            images = [Image.fromarray(np.ascontiguousarray(p.transpose(1, 2, 0))) for p in chw]
            inputs = VaeImageProcessor(do_resize=False).preprocess(images)
            expected = vae.encode(inputs).latent_dist.parameters.numpy()
            ours = read_moments(encoded, resolution)
            distance = np.abs(ours - expected).max() / np.abs(expected).max()
            print(f"moments at {resolution}: max |d| relative to the scale {distance:.2e}")
            # f16 has 11 significant bits.
            assert distance <= 1e-3
        ids = torch.tensor([prepared.column("token_ids")[i].as_py() for i in kept])
        expected = text_encoder(ids).last_hidden_state.numpy()
        values = [np.frombuffer(encoded.column("text")[i].as_py(), "<f2") for i in kept]
        ours = np.stack(values).astype(np.float32).reshape(expected.shape)
        distance = np.abs(ours - expected).max() / np.abs(expected).max()
        print(f"text: max |d| relative to the scale {distance:.2e}")
        assert distance <= 1e-3


def test_stage_releases_the_gil(run, batch):
    prepare = tidemill.Prepare(run)
    big = pa.Table.from_batches([batch] * 40)
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    prepare(big)
    end = time.perf_counter()
    done.set()
    thread.join()
    # If the stage held the GIL, there would be no tick meanwhile.
    assert sum(start < t < end for t in ticks) >= 3


def test_refused_input_raises_value_error(run, tmp_path):
    with pytest.raises(tidemill.InputError, match=r"did you mean `resolutions`\?|prepare.reslutions"):
        tidemill.Prepare(run, prepare={"reslutions": [64]})
    with pytest.raises(ValueError, match=r"none\.toml"):
        tidemill.preprocess(tmp_path / "none.toml")


def test_python_values_resolve_like_toml(tmp_path):
    """Including values that JSON writes differently than TOML."""
    file = tmp_path / "run.toml"
    file.write_text(
        r"""
output = "runs/😀"
prepare.resolutions = [64, 32]
[sample]
prompts = ["a 😀", "two\nlines of \"this\" \\ that", "\u0000\u0001\u007f\u0085"]
ema = false
[train]
learning_rate = 1e-5
[train.ema]
[[train.phase]]
steps = 10
resolution = 64
[[train.phase]]
steps = 5
resolution = 32
learning_rate = 1e16
[engine.ray.env]
"a.b 😀\u007f" = "c"
""",
        encoding="utf-8",
    )
    phases = [
        {"steps": 10, "resolution": 64, "learning_rate": None},
        {"steps": 5, "resolution": 32, "learning_rate": 1e16},
    ]
    prompts = ("a 😀", 'two\nlines of "this" \\ that', "\0\1\x7f\x85")
    mappings = {
        "output": Path("runs/😀"),
        "prepare.resolutions": [64, 32],
        "sample": {"prompts": prompts, "ema": False},
        "train": {"learning_rate": 1e-5, "ema": {}, "phase": phases},
        'engine.ray.env."a.b 😀\\u007f"': "c",
    }
    resolved = tidemill.resolve(file)
    assert resolved["sample"]["prompts"] == list(prompts)
    assert resolved["train"]["ema"]
    assert tidemill.resolve(mappings) == resolved
    assert tidemill.resolve(resolved) == resolved


def test_none_means_key_is_left_out(run):
    nothing = {"checkpoint.uri": None, "output": None, "train": {"min_snr_gamma": None, "ema": None}}
    assert tidemill.resolve(run, **nothing) == tidemill.resolve(run, train={})
    uri = {"checkpoint.uri": "s3://bucket"}
    assert tidemill.resolve(run | uri, **nothing) == tidemill.resolve(run | uri)
    assert tidemill.resolve(run, train={"ema": {"decay": None}}) == tidemill.resolve(run, train={"ema": {}})
    with pytest.raises(tidemill.InputError, match="cannot hold None"):
        tidemill.resolve(run, source={"uri": ["a.parquet", None]})


def test_non_finite_numbers_are_accepted_but_not_in_resolved_run(run):
    with pytest.raises(tidemill.InputError, match="a bound is not a number"):
        tidemill.Prepare(run, **{"filter.score.score.max": math.nan})
    limits = {"filter.score.score": {"min": -math.inf, "max": math.inf}}
    tidemill.Prepare(run, **limits)
    # If they were treated as left out, keys with a default would silently change.
    with pytest.raises(tidemill.InputError, match=r"m..: a number that is not finite"):
        tidemill.Prepare(tidemill.resolve(run, **limits))


def test_verbs_return_results(run, tmp_path):
    pairs = tmp_path / "pairs"
    assert tidemill.main(["synth", str(pairs), "--rows", "48", "--files", "1", "--quiet"]) == 0
    columns = {"image": "jpg", "caption": "caption", "key": "key"}
    source = {"uri": str(pairs / "*.parquet"), "columns": columns}
    result = tidemill.preprocess(run, source=source, output=tmp_path / "out", engine={"device": "cpu"})
    rows = result["rows"]
    assert rows["read"] == 48 == rows["kept"] + rows["rejected"] + rows["quarantined"]
    assert tidemill.inspect(tmp_path / "out/dataset")["rows"] == rows
    # The files are plain Parquet.
    files = list((tmp_path / "out/dataset/data").glob("*/*/text.parquet"))
    assert sum(pa.parquet.read_table(file).num_rows for file in files) == rows["kept"]


def test_python_m_tidemill_runs_command_line(tmp_path):
    def run(*args):
        return subprocess.run([sys.executable, "-m", "tidemill", *args], capture_output=True, text=True)

    assert "Usage: tidemill" in run("--help").stdout
    refused = run("preprocess", str(tmp_path / "none.toml"), "--json")
    assert refused.returncode == 2
    assert "none.toml" in json.loads(refused.stdout.splitlines()[-1])["error"]["message"]
    doctor = json.loads(run("doctor", "--json").stdout.splitlines()[-1])
    import torch

    assert doctor["libtorch"]["version"] == torch.__version__


def test_other_torch_version_is_refused():
    from tidemill import _libtorch

    pinned = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert f'"torch=={_libtorch.BUILT_WITH}"' in pinned
    _libtorch.check_torch_version("2.11.7+cu130")
    with pytest.raises(ImportError, match=r"built with torch 2\.11\.0, and torch 2\.12\.0\+cpu"):
        _libtorch.check_torch_version("2.12.0+cpu")


def test_torch_is_imported_lazily():
    """Importing it takes most of a second, and many processes of Ray do not need it."""
    code = """
import sys, tidemill, tidemill.ray
assert "torch" not in sys.modules or tidemill._libtorch.has_gpu()
import torch
assert issubclass(tidemill.StreamDataset, torch.utils.data.IterableDataset)
assert torch.ones(2, 2).mm(torch.ones(2, 2)).sum() == 8
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_import_raises_open_file_limit():
    code = """
import resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
import tidemill
enough = most if 0 <= most < 65536 else 65536
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (enough, most)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
