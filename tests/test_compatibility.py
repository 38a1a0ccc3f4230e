"""A dataset, checkpoints and run folders of version 0.1 (commit 15e5e25) still open and resume."""

import json
import shutil
from pathlib import Path

import pytest
import tidemill

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = ROOT / "tests" / "data" / "v0.1"

# The losses that the version which wrote the checkpoint has in the two steps after it. f32 sums
# differ between CPUs.
LOSSES = {
    "offline": {5: 1.149997591972351, 6: 1.072209119796753},
    "online": {5: 1.1359050273895264, 6: 1.143564224243164},
}
VALIDATION_EMA_LOSS = {"offline": 1.131131649017334, "online": 1.0108615159988403}


@pytest.fixture
def folder(tmp_path):
    """A copy of what version 0.1 wrote, beside the frozen models that it used."""
    shutil.copytree(WRITTEN, tmp_path, dirs_exist_ok=True)
    models = tmp_path / "models"
    models.mkdir()
    (tmp_path / "unet").rename(models / "unet")
    for name in ("vae", "text_encoder", "tokenizer", "scheduler", "model_index.json"):
        (models / name).symlink_to(ROOT / "assets" / name)
    return tmp_path


def settings(folder, mode):
    online = {"train.validation.dataset": str(folder / "offline/dataset"), "source.rows_per_unit": 8}
    return {
        "output": str(folder / mode),
        "source.uri": str(folder / "pairs/*.parquet"),
        "models.path": str(folder / "models"),
        **(online if mode == "online" else {}),
    }


def test_preprocess_redoes_nothing_of_an_older_dataset(folder, capfd):
    result = tidemill.preprocess(str(folder / "run.toml"), **settings(folder, "offline"))
    assert result["units"] == {"total": 2, "done": 0}
    assert (result["rows"]["kept"], result["this_run"]) == (24, None)
    # The files were moved, and are known by their identity.
    assert "not in the source" not in capfd.readouterr().err


def test_stream_reads_an_older_dataset(folder):
    stream = tidemill.Stream(str(folder / "offline/dataset"), resolution=64, global_batch=4)
    batch = next(iter(stream))
    assert len(batch) == 4


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_older_run_resumes_with_the_same_losses(folder, mode):
    result = tidemill.train(str(folder / "run.toml"), mode=mode, **settings(folder, mode))
    assert (result["resumed_at"], result["steps"], result["finished"]) == (4, 6, True)
    lines = [json.loads(line) for line in (folder / mode / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert {line["step"]: line["loss"] for line in lines[4:]} == pytest.approx(LOSSES[mode], rel=1e-4)
    assert lines[-1]["validation_ema_loss"] == pytest.approx(VALIDATION_EMA_LOSS[mode], rel=1e-4)
