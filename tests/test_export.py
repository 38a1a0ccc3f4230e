"""From pairs to an exported model, which samples the same images in diffusers."""

import json

import numpy as np
import pytest
import tidemill
import torch
from diffusers import StableDiffusionPipeline
from helpers.images import assert_same_samples
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

PROMPTS = ["a small red circle in the upper left", "a large blue star in the center"]


def assert_tensorboard_matches_metrics(run):
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (events,) = {path.parent for path in run.rglob("events.out.tfevents.*")}
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    (tag,) = [tag for tag in tags if tag.endswith("/loss")]
    assert any(tag.startswith("loss_by_timestep/") for tag in tags)
    scalars = accumulator.Scalars(tag)
    assert [scalar.step for scalar in scalars] == [line["step"] for line in metrics]
    np.testing.assert_allclose([s.value for s in scalars], [m["loss"] for m in metrics], rtol=1e-6)


FLOW = {"prediction": "flow_prediction", "flow_shift": 2.0}
EDM = {"edm": {"sigma_data": 1.0}, "timesteps": {"log_normal": {}}}


@pytest.mark.parametrize(
    ("method", "objective"), [("ddim", {}), ("dpm++2m", FLOW), ("ddim", EDM)], ids=["noise", "flow", "edm"]
)
def test_exported_model_samples_same_images_in_diffusers(run, tmp_path, method, objective):
    tidemill.main(["synth", str(tmp_path / "data"), "--rows", "64", "--files", "1"])
    config = {
        **run,
        "output": str(tmp_path / "run"),
        "source": {**run["source"], "uri": str(tmp_path / "data" / "*.parquet")},
        "prepare": {"resolutions": [64]},
        "train": {
            "global_batch": 8,
            "micro_batch": 8,
            "learning_rate": 1e-3,
            "warmup_steps": 1,
            "phase": [{"resolution": 64, "steps": 6}],
            **objective,
        },
        "sample": {"prompts": PROMPTS, "method": method, "steps": 10, "guidance": 3.0},
    }
    done = tidemill.run(config)
    assert (tmp_path / "run" / "report.html").exists()
    assert done["summary"]["rows"]["read"] == 64
    assert_tensorboard_matches_metrics(tmp_path / "run")
    samples = tmp_path / "run" / "samples"
    pipeline = StableDiffusionPipeline.from_pretrained(done["summary"]["export"])
    assert_same_samples(pipeline, samples, PROMPTS)
    # A single file has no scheduler, so one objective is enough.
    if not objective:
        check_single_file(config, done["summary"]["export"], pipeline, tmp_path)


def check_single_file(run, folder, pipeline, tmp_path):
    """diffusers opens the single file, with the same weights."""
    file = tmp_path / "single.safetensors"
    tidemill.export(run, single_file=file)
    opened = StableDiffusionPipeline.from_single_file(
        file, config=folder, local_files_only=True, safety_checker=None
    )
    for part in ("unet", "vae", "text_encoder"):
        ours, theirs = getattr(opened, part).state_dict(), getattr(pipeline, part).state_dict()
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert torch.equal(tensor, theirs[name]), f"{part}.{name}"
