"""SDXL: two text encoders, pooled text, and sizes of image and crop, compared with diffusers."""

import shutil

import numpy as np
import pytest
import tidemill
import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from helpers import run_output, sdxl, training
from helpers.images import assert_same_samples
from helpers.pairs import read_dataset, write_pairs
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

PROMPTS = ["a small red circle in the upper left", "a large blue star in the center"]


@pytest.fixture(scope="module")
def models(make_rng, tmp_path_factory):
    seed = make_rng("sdxl").randrange(2**32)
    return sdxl.make_models(tmp_path_factory.mktemp("models") / "sdxl", seed)


@pytest.fixture(scope="module")
def pairs(make_rng, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder, make_rng("sdxl pairs"), 1, 40)
    return folder


def settings(models, pairs, output, **more):
    return {
        **training.SETTINGS,
        "models.path": str(models),
        "source.uri": str(pairs / "*.parquet"),
        "output": str(output),
        "prepare.crop": "random",
        "prepare.flip": True,
        "encode.batch_size": 8,
        "train.global_batch": 10,
        "train.micro_batch": 6,
        **training.phase(6),
        **more,
    }


@pytest.fixture(scope="module")
def dataset(models, pairs, tmp_path_factory):
    output = tmp_path_factory.mktemp("sdxl")
    tidemill.preprocess(settings(models, pairs, output))
    return output / "dataset"


def open_pipeline(models):
    """diffusers' pipeline of the folder, which has no `model_index.json`."""
    return StableDiffusionXLPipeline(
        vae=AutoencoderKL.from_pretrained(models / "vae"),
        text_encoder=CLIPTextModel.from_pretrained(models / "text_encoder"),
        text_encoder_2=CLIPTextModelWithProjection.from_pretrained(models / "text_encoder_2"),
        tokenizer=CLIPTokenizer.from_pretrained(models / "tokenizer"),
        tokenizer_2=CLIPTokenizer.from_pretrained(models / "tokenizer_2"),
        unet=UNet2DConditionModel.from_pretrained(models / "unet"),
        scheduler=EulerDiscreteScheduler(),
    )


def encode_captions(models, captions):
    """What diffusers' pipeline makes of captions: text embeddings, and pooled text."""
    with torch.no_grad():
        text, _, pooled, _ = open_pipeline(models).encode_prompt(
            captions, device="cpu", num_images_per_prompt=1, do_classifier_free_guidance=False
        )
    return text.numpy(), pooled.numpy()


def to_halves(column, width):
    return np.stack([np.frombuffer(value, np.float16) for value in column.to_pylist()]).reshape(-1, width)


CAPTIONER = """
def describe(images, captions, keys):
    return [f"{caption} seen as {image.mean():.0f}" for caption, image in zip(captions, images)]
"""


def test_stored_conditions_are_those_of_diffusers(models, dataset):
    assert_conditions_are_those_of_diffusers(models, dataset.parent)


def test_both_encoders_get_the_captions_of_a_captioner(models, pairs, tmp_path, monkeypatch):
    (tmp_path / "my_captions.py").write_text(CAPTIONER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    stage = {"caption.stage": "my_captions:describe", "caption.stage_size": 32}
    tidemill.preprocess(settings(models, pairs, tmp_path / "run", **stage))
    captions = assert_conditions_are_those_of_diffusers(models, tmp_path / "run")
    assert all("seen as" in caption for caption in captions)


def assert_conditions_are_those_of_diffusers(models, output):
    """Returns the captions."""
    captions = []
    for _, tables in read_dataset(output).values():
        rows = tables["rows.parquet"].to_pylist()
        latents, time_ids = tables["latents-64.parquet"], tables["time_ids-64.parquet"]
        kept = [rows[row] for row in latents["row"].to_pylist()]
        text, pooled = encode_captions(models, [row["caption"] for row in kept])
        ours = [
            to_halves(tables[f"{name}.parquet"][name], 77 * width).reshape(-1, 77, width)
            for name, width in zip(("text", "text_2"), sdxl.WIDTHS, strict=True)
        ]
        np.testing.assert_allclose(np.concatenate(ours, axis=2), text, rtol=1e-3, atol=2e-3)
        ours = to_halves(tables["pooled_2.parquet"]["pooled_2"], sdxl.POOLED)
        np.testing.assert_allclose(ours, pooled, rtol=1e-3, atol=2e-3)
        assert np.ptp(pooled, axis=0).max() > 0.1, "captions that are all the same prove nothing"
        for row, stored in zip(kept, time_ids["time_ids_64"].to_pylist(), strict=True):
            assert np.frombuffer(stored, np.int32).tolist() == expected_time_ids(row, 64)
        captions += [row["caption"] for row in kept]
    assert len(captions) > 20
    return captions


def expected_time_ids(row, side):
    """As diffusers' script has them, which resizes, mirrors and then crops."""
    x, y, width, height = row["crop_64"]
    left = row["width"] - width - x if row["flipped"] else x
    top, left = round(y * side / height), round(left * side / width)
    return [row["height"], row["width"], top, left, side, side]


def train(models, pairs, dataset, output, denoiser=None, **more):
    if dataset:
        training.link_dataset(output, dataset)
    tidemill.train(settings(models, pairs, output, **more), denoiser=denoiser)
    return run_output.read_metrics(output)


def test_diffusers_unet_trains_like_native_unet(models, pairs, dataset, tmp_path):
    """Losses are the same, so conditions are. Captions are dropped for each encoder by itself."""
    more = {"train.caption_dropout": [0.5, 0.3], "train.max_grad_norm": 0.5}
    module = UNet2DConditionModel.from_pretrained(models / "unet")
    native = train(models, pairs, dataset, tmp_path / "native", **more)
    own = train(models, pairs, dataset, tmp_path / "own", module, **more)
    for name, rtol in (("loss", 1e-5), ("grad_norm", 1e-4)):
        ours, theirs = ([line[name] for line in side] for side in (native, own))
        np.testing.assert_allclose(ours, theirs, rtol=rtol, err_msg=name)
    flops = [line["tflops"] / line["images_per_second"] for line in (native[0], own[0])]
    assert flops[0] == pytest.approx(flops[1], rel=1e-9)


def test_captions_encoded_by_the_trainer_train_like_stored_ones(models, pairs, dataset, tmp_path):
    stored = train(models, pairs, dataset, tmp_path / "stored")
    more = {"encode.embeddings": "none"}
    tidemill.preprocess(settings(models, pairs, tmp_path / "ids", **more))
    ids = train(models, pairs, None, tmp_path / "ids", **more)
    ours, theirs = ([line["loss"] for line in side] for side in (ids, stored))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_two_ranks_train_like_one(models, pairs, dataset, tmp_path):
    """Weights are gathered module by module while the forward pass runs, also with gradient checkpointing."""
    run = settings(models, pairs, None, **{"train.gradient_checkpointing": True})
    del run["output"]
    for ranks in (1, 2):
        training.train_to_end(tmp_path / str(ranks), dataset, ranks=ranks, **run)
    losses = [[line["loss"] for line in run_output.read_metrics(tmp_path / str(ranks))] for ranks in (1, 2)]
    assert len(losses[0]) == 6
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_trains_without_a_dataset(models, pairs, tmp_path):
    """The same rows, whether encoded beside the trainer or in it."""
    preview = {"train.preview": {"every": 3, "prompts": PROMPTS}}
    losses = []
    for mode in ("online", "colocated"):
        tidemill.run(settings(models, pairs, tmp_path / mode, **preview), mode=mode)
        losses.append([line["loss"] for line in run_output.read_metrics(tmp_path / mode)])
        assert len(list((tmp_path / mode / "previews").glob("*.png"))) == 2
    assert len(losses[0]) == 6
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_exported_model_samples_same_images_in_diffusers(models, pairs, dataset, tmp_path):
    sampling = {"prompts": PROMPTS, "steps": 10, "guidance": 3.0}
    training.link_dataset(tmp_path / "run", dataset)
    run = settings(models, pairs, tmp_path / "run", sample=sampling)
    done = tidemill.run(run)
    pipeline = StableDiffusionXLPipeline.from_pretrained(done["summary"]["export"])
    assert_same_samples(pipeline, tmp_path / "run/samples", PROMPTS)


def test_second_encoder_is_added_without_encoding_images_again(models, pairs, tmp_path):
    """A folder with the same VAE: latents are copied."""
    one = tmp_path / "one"
    shutil.copytree(models, one)
    for part in ("text_encoder_2", "tokenizer_2"):
        shutil.rmtree(one / part)
    shutil.copytree(training.ASSETS / "unet", one / "unet", dirs_exist_ok=True)
    (one / "unet/diffusion_pytorch_model.safetensors").unlink()
    first = tidemill.preprocess(settings(one, pairs, tmp_path / "run"))
    second = tidemill.preprocess(settings(models, pairs, tmp_path / "run"))
    assert first["this_run"]["encoded"]["images"] == first["rows"]["kept"] > 20
    assert second["this_run"]["encoded"]["images"] == 0
    fresh = tmp_path / "fresh"
    tidemill.preprocess(settings(models, pairs, fresh))
    for (_, ours), (_, theirs) in zip(
        read_dataset(tmp_path / "run").values(), read_dataset(fresh).values(), strict=True
    ):
        assert ours.keys() == theirs.keys()
        for name, table in ours.items():
            assert table.equals(theirs[name]), name


def test_a_folder_without_what_the_unet_needs_is_refused(models, pairs, tmp_path):
    folder = tmp_path / "one"
    shutil.copytree(models, folder)
    shutil.rmtree(folder / "text_encoder_2")
    with pytest.raises(tidemill.InputError, match="needs a text_encoder_2/ with a projection"):
        tidemill.run(settings(folder, pairs, tmp_path / "run"))
    shutil.copytree(models / "text_encoder_2", folder / "text_encoder_2")
    shutil.rmtree(folder / "tokenizer_2")
    with pytest.raises(tidemill.InputError, match="tokenizer_2"):
        tidemill.run(settings(folder, pairs, tmp_path / "run"))
