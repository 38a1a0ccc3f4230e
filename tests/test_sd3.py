"""Stable Diffusion 3's transformer, compared with diffusers."""

import numpy as np
import pytest
import tidemill
import torch
from diffusers import StableDiffusion3Pipeline
from helpers import run_output, sd3, training
from helpers.images import assert_same_samples
from helpers.pairs import read_dataset, write_pairs

PROMPTS = ["a small red circle in the upper left", "a large blue star in the center"]


@pytest.fixture(scope="module")
def models(make_rng, tmp_path_factory):
    seed = make_rng("sd3").randrange(2**32)
    return sd3.make_models(tmp_path_factory.mktemp("models") / "sd3", seed)


@pytest.fixture(scope="module")
def pairs(make_rng, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder, make_rng("sd3 pairs"), 1, 40)
    return folder


def settings(models, pairs, output, **more):
    return {
        **training.SETTINGS,
        "models.path": str(models),
        "source.uri": str(pairs / "*.parquet"),
        "output": str(output),
        # Images of several sizes get the positions in the middle.
        "prepare.crop": "bucket",
        "prepare.buckets": {"64": [[64, 64], [48, 80], [80, 48]]},
        "encode.batch_size": 8,
        "train.global_batch": 4,
        "train.micro_batch": 3,
        "train.timesteps.logit_normal": {},
        **training.phase(6),
        **more,
    }


@pytest.fixture(scope="module")
def dataset(models, pairs, tmp_path_factory):
    output = tmp_path_factory.mktemp("sd3")
    tidemill.preprocess(settings(models, pairs, output))
    return output / "dataset"


def train(models, pairs, dataset, output, denoiser=None, **more):
    training.link_dataset(output, dataset)
    tidemill.train(settings(models, pairs, output, **more), denoiser=denoiser)
    return run_output.read_metrics(output)


def test_diffusers_transformer_trains_like_the_native_one(models, pairs, dataset, tmp_path):
    """Losses are the same, so conditions and latents are. The text has tokens of zeros in place of T5's."""
    more = {"train.caption_dropout": [0.5, 0.3], "encode.max_sequence_length": 5, "train.max_grad_norm": 0.5}
    module = sd3.Denoiser(models / "transformer")
    native = train(models, pairs, dataset, tmp_path / "native", **more)
    own = train(models, pairs, dataset, tmp_path / "own", module, **more)
    for name, rtol in (("loss", 1e-5), ("grad_norm", 1e-4)):
        ours, theirs = ([line[name] for line in side] for side in (native, own))
        np.testing.assert_allclose(ours, theirs, rtol=rtol, err_msg=name)
    flops = [line["tflops"] / line["images_per_second"] for line in (native[0], own[0])]
    assert flops[0] == pytest.approx(flops[1], rel=1e-9)


def test_exported_model_samples_same_images_in_diffusers(models, pairs, dataset, tmp_path):
    training.link_dataset(tmp_path / "run", dataset)
    sampling = {"prompts": PROMPTS, "steps": 10, "guidance": 3.0}
    run = settings(models, pairs, tmp_path / "run", sample=sampling)
    done = tidemill.run(run)
    without_t5 = {"text_encoder_3": None, "tokenizer_3": None}
    pipeline = StableDiffusion3Pipeline.from_pretrained(done["summary"]["export"], **without_t5)
    assert pipeline.scheduler.config.shift == 3.0
    assert_same_samples(pipeline, tmp_path / "run/samples", PROMPTS)
    with torch.no_grad():
        text, _, pooled, _ = pipeline.encode_prompt(PROMPTS, None, None, do_classifier_free_guidance=False)
    assert text.shape[1:] == (77 + 256, 20)
    assert pooled.shape[1:] == (sum(sd3.POOLED),)


def test_each_encoder_has_columns_of_its_own(dataset):
    ((_, tables),) = read_dataset(dataset.parent).values()
    assert {"text.parquet", "pooled.parquet", "text_2.parquet", "pooled_2.parquet"} < tables.keys()
    assert "time_ids-64.parquet" not in tables


def test_noise_prediction_is_refused(models, pairs, tmp_path):
    with pytest.raises(tidemill.InputError, match=r"train\.prediction.*flow_prediction"):
        tidemill.run(settings(models, pairs, tmp_path / "run", **{"train.prediction": "epsilon"}))
