"""Models in and out: the Hugging Face Hub, half precision, single files, torch's own checkpoints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tidemill
import torch
from diffusers import StableDiffusionPipeline, UNet2DConditionModel
from helpers import fake_hub, run_output, training
from safetensors.torch import save_file
from tidemill.run_file import to_command_line
from torch.distributed import checkpoint

PARTS = ("unet", "vae", "text_encoder")
STEPS = 4


@pytest.fixture(scope="module")
def trained(dataset, make_once):
    """The settings of a run that has trained a few steps, with averaged weights."""
    settings = {
        **training.SETTINGS,
        **training.phase(STEPS),
        "train.ema": {"decay": 0.9},
        "train.global_batch": 4,
        "train.micro_batch": 4,
    }

    def fill(folder):
        (folder / "dataset").symlink_to(dataset)
        tidemill.train({**settings, "output": str(folder)})

    return {**settings, "output": str(make_once("trained-for-exchange", fill)[0])}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A server in the Hub's place, and an empty cache."""
    with fake_hub.serve() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield server


def weights_of(folder):
    pipeline = StableDiffusionPipeline.from_pretrained(folder)
    return {part: getattr(pipeline, part).state_dict() for part in PARTS}


def assert_same_weights(ours, theirs):
    for part in PARTS:
        assert ours[part].keys() == theirs[part].keys()
        for name, tensor in ours[part].items():
            assert torch.equal(tensor, theirs[part][name]), f"{part}.{name}"


def test_export_to_hub_is_a_model_for_the_next_run(trained, hub):
    done = tidemill.export(trained, to="hf://me/shapes", variant="fp16")
    assert done["page"].endswith("/me/shapes")
    uploaded = hub.repositories["me/shapes"]
    assert "unet/diffusion_pytorch_model.fp16.safetensors" in uploaded
    # Other files of a repository are not downloaded.
    uploaded["v1-5-pruned.safetensors"] = b"as large as everything else"
    settings = {**trained, "models.path": "hf://me/shapes"}
    tidemill.Encode(settings)
    assert not any("v1-5-pruned" in request for request in hub.requests)
    # What is in the cache needs no network. Another process asks for it, as this one remembers.
    asked = len(hub.requests)
    subprocess.run(
        [sys.executable, "-c", f"import tidemill; tidemill.Encode({settings!r})"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=True,
    )
    assert len(hub.requests) == asked


def test_missing_repositories_are_named(trained, hub):
    with pytest.raises(tidemill.InputError, match="hf://me/nothing"):
        tidemill.Encode({**trained, "models.path": "hf://me/nothing"})
    with pytest.raises(tidemill.InputError, match="hf://user/name"):
        tidemill.Encode({**trained, "models.path": "hf://nothing"})


def test_half_precision_variant_opens_in_diffusers_and_here(trained, tmp_path):
    full = tidemill.export(trained, to=tmp_path / "full")["path"]
    half = tmp_path / "half"
    tidemill.export(trained, to=half)
    tidemill.export(trained, to=half, variant="fp16")
    # Nothing of the first export remains, whose weights might be those of another step.
    assert {path.name.count(".fp16.") for path in half.rglob("*.safetensors")} == {1}
    pipeline = StableDiffusionPipeline.from_pretrained(half, variant="fp16", torch_dtype=torch.float16)
    for part, theirs in weights_of(full).items():
        for name, tensor in getattr(pipeline, part).state_dict().items():
            assert torch.equal(tensor, theirs[name].to(tensor.dtype)), f"{part}.{name}"
    tidemill.Encode({**trained, "models.path": str(half)})


def test_single_file_becomes_a_folder_again(trained, tmp_path):
    file, imported = tmp_path / "model.safetensors", tmp_path / "imported"
    exported = tidemill.export(trained, to=tmp_path / "export", single_file=file)["path"]
    assert tidemill.main(["import", str(file), "--config", str(training.ASSETS), "--to", str(imported)]) == 0
    assert_same_weights(weights_of(imported), weights_of(exported))


def test_files_of_another_architecture_are_refused(trained, tmp_path, capfd):
    file = tmp_path / "other.safetensors"
    save_file({"model.diffusion_model.input_blocks.0.0.weight": torch.zeros(4, 4, 3, 3)}, file)
    arguments = ["import", str(file), "--config", str(training.ASSETS), "--to", str(tmp_path / "to")]
    assert tidemill.main(arguments) == 2
    assert "of the same architecture" in capfd.readouterr().err


def test_dcp_has_weights_averages_and_moments(trained, tmp_path):
    to = tmp_path / "dcp"
    assert tidemill.main(["checkpoint", "to-dcp", *to_command_line(trained), "--to", str(to)]) == 0
    assert not list(tmp_path.glob("*.partial"))
    unet = UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(training.ASSETS / "unet"))

    def empty():
        return {name: torch.empty_like(parameter) for name, parameter in unet.named_parameters()}

    first, second = empty(), empty()
    moments = {
        name: {"exp_avg": first[name], "exp_avg_sq": second[name], "step": torch.zeros(())} for name in first
    }
    state = {"model": unet.state_dict(), "ema": empty(), "optimizer": {"state": moments}}
    # The state of the user's own module, as after `fully_shard`.
    checkpoint.load(state, checkpoint_id=to, no_dist=True)
    expected = run_output.read_state(trained["output"], STEPS)
    commit = Path(trained["output"]) / f"checkpoints/step-{STEPS:08}/commit.json"
    names = [parameter["name"] for parameter in json.loads(commit.read_text())["parameters"]]
    assert sorted(names) == sorted(first)
    loaded = {"master": state["model"], "ema": state["ema"], "exp_avg": first, "exp_avg_sq": second}
    for buffer, tensors in loaded.items():
        ours = torch.cat([tensors[name].flatten() for name in names])
        assert np.array_equal(ours.detach().numpy(), expected[buffer]), buffer
    assert all(moment["step"] == STEPS for moment in moments.values())
