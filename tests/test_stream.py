"""The training stream from Python: content, zero copy, any number of ranks, and resume."""

import json
import subprocess
import sys
from itertools import islice

import lightning
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tidemill
import torch
from helpers.pairs import encode_noise
from torch.utils.data import DataLoader
from transformers import CLIPTokenizer

ROWS = 60


@pytest.fixture(scope="module")
def dataset(run, make_rng, tmp_path_factory):
    """A latent dataset of noise images at 64 and 32 pixels."""
    folder, rng = tmp_path_factory.mktemp("stream"), make_rng("stream")

    pairs = {
        "key": [f"k{i}" for i in range(ROWS)],
        "caption": [f"picture {i}" for i in range(ROWS)],
        "jpg": [encode_noise(rng, 70, 70) for _ in range(ROWS)],
        "score": [0.5] * ROWS,
    }
    pq.write_table(pa.table(pairs), folder / "pairs.parquet", row_group_size=20)
    preprocess(run, folder / "pairs.parquet", folder / "out")
    return folder / "out" / "dataset"


def preprocess(run, pairs, output, **encode):
    source = run["source"] | {"uri": str(pairs), "rows_per_unit": 20}
    name = {"name": "stream", "output": str(output), "source": source}
    result = tidemill.preprocess(run | name | {"encode": run["encode"] | encode})
    assert result["rows"]["kept"] == ROWS


@pytest.fixture
def stream(dataset):
    def open_stream(**arguments):
        few = {"resolution": 64, "global_batch": 16, "shuffle_window": 2}
        return tidemill.Stream(dataset, **few | arguments)

    return open_stream


def read_stored(dataset, group):
    """The stored tensors as bytes, by sample id."""
    found = {}
    for path in dataset.glob(f"data/*/*/{group}.parquet"):
        table = pq.read_table(path)
        found |= dict(zip(table["sample_id"].to_pylist(), table.column(3).to_pylist(), strict=True))
    return found


def take(stream, n):
    return [(batch.sample_ids, np.from_dlpack(batch.latents).copy()) for batch in islice(stream, n)]


def are_equal(one, other):
    return len(one) == len(other) and all(
        a[0] == b[0] and np.array_equal(a[1], b[1]) for a, b in zip(one, other, strict=True)
    )


def test_epoch_has_every_row_with_its_bytes(dataset, stream):
    latents, text = read_stored(dataset, "latents-64"), read_stored(dataset, "text")
    batches = stream(global_batch=ROWS)
    assert batches.rows == ROWS
    batch = next(batches)
    assert (len(batch), batch.number, batch.size) == (ROWS, 0, (64, 64))
    assert sorted(batch.sample_ids) == sorted(latents)
    assert set(batch.epochs) == {0}
    for i, sample_id in enumerate(batch.sample_ids):
        assert np.from_dlpack(batch.latents)[i].tobytes() == latents[sample_id]
        assert torch.from_dlpack(batch.text)[i].numpy().tobytes() == text[sample_id]


def test_arrow_and_dlpack_share_memory(stream):
    batch = next(stream())
    arrow, latents = batch.arrow(), torch.from_dlpack(batch.latents)
    field, column = arrow.schema.field("latents_64"), arrow.column("latents_64")
    assert list(latents.shape) == [16, *json.loads(field.metadata[b"shape"])] == batch.latents.shape
    assert latents.dtype == torch.float16
    assert latents.data_ptr() == column.buffers()[1].address
    assert arrow["sample_id"].to_pylist() == batch.sample_ids


def test_token_ids_match_transformers(run, dataset, tmp_path):
    preprocess(run, dataset.parent.parent / "pairs.parquet", tmp_path, embeddings="none")
    batch = next(tidemill.Stream(tmp_path / "dataset", resolution=64, global_batch=ROWS))
    captions = {}
    for path in (tmp_path / "dataset").glob("data/*/*/rows.parquet"):
        table = pq.read_table(path)
        captions |= dict(zip(table["sample_id"].to_pylist(), table["caption"].to_pylist(), strict=True))
    tokenizer = CLIPTokenizer.from_pretrained(run["models"]["path"], subfolder="tokenizer")
    texts = [captions[sample_id] for sample_id in batch.sample_ids]
    expected = tokenizer(texts, padding="max_length", truncation=True, max_length=77).input_ids
    text = torch.from_dlpack(batch.text)
    assert text.dtype == torch.int32
    assert text.tolist() == expected


def test_memory_in_use_is_not_recycled(stream):
    batches = stream(prefetch=1)
    held = [torch.from_dlpack(next(batches).latents) for _ in range(30)]
    expected = [latents for _, latents in take(stream(), 30)]
    assert all(np.array_equal(a.numpy(), b) for a, b in zip(held, expected, strict=True))


def test_ranks_share_batches_and_state_resumes_with_other_rank_count(stream):
    whole = take(stream(), 12)
    ranks = [stream(ranks=3, rank=rank) for rank in range(3)]
    for number in range(5):
        parts = [next(rank) for rank in ranks]
        rows = sorted(row for part in parts for row in zip(part.places, part.sample_ids, strict=True))
        assert rows == list(enumerate(whole[number][0]))
    state = json.loads(json.dumps(ranks[2].state_dict()))
    assert are_equal(take(stream(state=state), 7), whole[5:])


READER = """
import json, sys, tidemill
state = json.loads(sys.argv[2])
settings = {"resolution": 64, "global_batch": 16, "shuffle_window": 2, "prefetch": 8}
stream = tidemill.Stream(sys.argv[1], **settings, state=state)
for batch in stream:
    print(json.dumps([batch.sample_ids, stream.state_dict()]), flush=True)
"""


def test_stream_resumes_without_loss_after_kill(dataset, stream, rng):
    expected = [ids for ids, _ in take(stream(), 40)]
    seen, state = [], None
    while len(seen) < 40:
        command = [sys.executable, "-c", READER, str(dataset), json.dumps(state)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(rng.randrange(1, 15)):
                ids, state = json.loads(process.stdout.readline())
                seen.append(ids)
            process.kill()
    assert seen[:40] == expected


def test_next_phase_changes_batch_size(stream):
    batches = stream()
    seen = [id for ids, _ in take(batches, 2) for id in ids]
    batches.next_phase(global_batch=ROWS - 32)
    assert len(set(seen + next(batches).sample_ids)) == ROWS, "each row once per epoch"
    with pytest.raises(tidemill.InputError, match="global_batch"):
        stream(state=batches.state_dict())


def test_stream_dataset_resumes_in_data_loader(dataset):
    arguments = {"resolution": 32, "global_batch": 8, "seed": 5}

    def batches(data, n):
        loader = DataLoader(data, batch_size=None)
        return list(islice(loader, n))

    whole = batches(tidemill.StreamDataset(dataset, **arguments), 10)
    assert whole[0]["latents"].shape[0] == 8
    assert whole[0]["text"].dtype == torch.float16
    first = tidemill.StreamDataset(dataset, **arguments)
    batches(first, 4)
    second = tidemill.StreamDataset(dataset, **arguments)
    second.load_state_dict(first.state_dict())
    for one, other in zip(batches(second, 6), whole[4:], strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)
    with pytest.raises(ValueError, match="num_workers"):
        next(iter(DataLoader(first, batch_size=None, num_workers=1)))


class RecordingModule(lightning.LightningModule):
    """Fetches its batches itself: a prefetched batch would be missing after a resume."""

    def __init__(self):
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.ones(())), []

    def training_step(self, dataloader_iter):
        batch, _, _ = next(dataloader_iter)
        self.seen += batch["sample_ids"].tolist()
        return self.weight * batch["latents"].float().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def test_stream_dataset_resumes_in_lightning(dataset, tmp_path):
    def rows(steps, **resume):
        stream = tidemill.StreamDataset(dataset, resolution=64, global_batch=8)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(max_steps=steps, accelerator="cpu", default_root_dir=tmp_path, **quiet)
        module = RecordingModule()
        trainer.fit(module, stream, weights_only=False, **resume)
        trainer.save_checkpoint(tmp_path / "saved.ckpt")
        return module.seen

    whole, first = rows(10), rows(4)
    assert len(whole) == 80
    assert first + rows(10, ckpt_path=tmp_path / "saved.ckpt") == whole


def test_invalid_stream_arguments_are_refused(dataset, stream):
    with pytest.raises(tidemill.InputError, match="128"):
        stream(resolution=128)
    with pytest.raises(tidemill.InputError, match="seed"):
        stream(seed=1, state=stream().state_dict())
    with pytest.raises(tidemill.InputError, match="rank"):
        stream(ranks=2, rank=2)
    with pytest.raises(tidemill.InputError, match="no dataset"):
        tidemill.Stream({"a": dataset}, resolution=64, global_batch=8, mix={"b": {"repeat": 1}})
