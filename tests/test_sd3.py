"""Stable Diffusion 3's transformer, compared with diffusers."""

from pathlib import Path

import numpy as np
import pytest
import tidemill
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from helpers import run_output, sd3, sdxl, training
from helpers.images import assert_same_samples
from helpers.pairs import read_dataset, write_pairs
from transformers import CLIPTextModelWithProjection, CLIPTokenizer, T5EncoderModel, T5Tokenizer

PROMPTS = ["a small red circle in the upper left", "a large blue star in the center"]


@pytest.fixture(scope="module", params=[False, True], ids=["clip", "t5"])
def models(request, make_rng, tmp_path_factory):
    seed = make_rng("sd3").randrange(2**32)
    return sd3.make_models(tmp_path_factory.mktemp("models") / "sd3", seed, has_t5=request.param)


def has_t5(models):
    return (models / "text_encoder_3").exists()


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
        # Shorter than some captions are for T5.
        "encode.max_sequence_length": 9,
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
    """Losses are the same, so conditions and latents are."""
    shares = [0.5, 0.3, 0.4] if has_t5(models) else [0.5, 0.3]
    more = {"train.caption_dropout": shares, "train.max_grad_norm": 0.5}
    module = sd3.Denoiser(models / "transformer")
    native = train(models, pairs, dataset, tmp_path / "native", **more)
    own = train(models, pairs, dataset, tmp_path / "own", module, **more)
    for name, rtol in (("loss", 1e-5), ("grad_norm", 1e-4)):
        ours, theirs = ([line[name] for line in side] for side in (native, own))
        np.testing.assert_allclose(ours, theirs, rtol=rtol, err_msg=name)
    flops = [line["tflops"] / line["images_per_second"] for line in (native[0], own[0])]
    assert flops[0] == pytest.approx(flops[1], rel=1e-9)


def test_norms_in_f32_beside_bf16(models, pairs, dataset, tmp_path):
    """The norms of queries and keys, too, have weights in f32."""
    bf16 = {"train.precision": "bf16", "train.norm_precision": "f32"}
    few = training.phase(2)
    losses = [
        [line["loss"] for line in train(models, pairs, dataset, tmp_path / name, **few, **more)]
        for name, more in (("f32", {}), ("bf16", bf16))
    ]
    np.testing.assert_allclose(*losses, rtol=0.02)


def test_two_ranks_train_like_one(models, pairs, dataset, tmp_path):
    """Weights are gathered module by module while the forward pass runs, also with gradient checkpointing."""
    run = settings(models, pairs, None, **{"train.gradient_checkpointing": True})
    del run["output"]
    for ranks in (1, 2):
        training.train_to_end(tmp_path / str(ranks), dataset, ranks=ranks, **run)
    losses = [[line["loss"] for line in run_output.read_metrics(tmp_path / str(ranks))] for ranks in (1, 2)]
    assert len(losses[0]) == 6
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_exported_model_samples_same_images_in_diffusers(models, pairs, dataset, tmp_path):
    training.link_dataset(tmp_path / "run", dataset)
    # One of the two models has a shift that follows from the size of images, of which there are 16 tokens.
    shift = {"base_shift": 0.3, "max_shift": 2.0, "base_image_seq_len": 4, "max_image_seq_len": 64}
    sampling = {"prompts": PROMPTS, "steps": 10, "guidance": 3.0}
    more = {"train.flow_shift": shift} if has_t5(models) else {}
    done = tidemill.run(settings(models, pairs, tmp_path / "run", sample=sampling, **more))
    pipeline = open_export(done["summary"]["export"])
    written = pipeline.scheduler.config
    if more:
        assert written.use_dynamic_shifting
        assert {key: written[key] for key in shift} == shift
    else:
        assert (written.shift, written.use_dynamic_shifting) == (3.0, False)
    assert_same_samples(pipeline, tmp_path / "run/samples", PROMPTS, max_sequence_length=9)


def open_export(folder):
    without_t5 = {"text_encoder_3": None, "tokenizer_3": None}
    return StableDiffusion3Pipeline.from_pretrained(folder, **({} if has_t5(Path(folder)) else without_t5))


def test_stored_text_is_that_of_diffusers(models, pairs, dataset, tmp_path):
    """Joined as the trainer does, which a denoiser of our own sees."""
    ((_, tables),) = read_dataset(dataset.parent).values()
    groups = {"text", "pooled", "text_2", "pooled_2", *(["text_3"] if has_t5(models) else [])}
    assert {f"{group}.parquet" for group in groups} == {name for name in tables if name[0] in "tp"}
    captions = {row["sample_id"]: row["caption"] for row in tables["rows.parquet"].to_pylist()}

    seen = []
    module = sd3.Denoiser(models / "transformer")
    module.register_forward_pre_hook(lambda _, inputs, named: seen.append((inputs, named)), with_kwargs=True)
    more = {"train.caption_dropout": 0.0, "train.micro_batch": 4, **training.phase(1)}
    train(models, pairs, dataset, tmp_path / "run", module, **more)
    ids = first_batch(dataset)
    inputs, named = seen[-1]
    expected, pooled = encode_captions(models, [captions[sample] for sample in ids])
    np.testing.assert_allclose(inputs[2].detach(), expected, rtol=1e-3, atol=2e-3)
    np.testing.assert_allclose(named["added_cond_kwargs"]["text_embeds"], pooled, rtol=1e-3, atol=2e-3)


def first_batch(dataset):
    """Sample ids of the first batch that a run with seed 0 trains on."""
    return next(iter(tidemill.Stream(str(dataset), resolution=64, global_batch=4))).sample_ids


def encode_captions(models, captions):
    pipeline = StableDiffusion3Pipeline(
        transformer=SD3Transformer2DModel.from_pretrained(models / "transformer"),
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=None,
        text_encoder=CLIPTextModelWithProjection.from_pretrained(models / "text_encoder"),
        tokenizer=CLIPTokenizer.from_pretrained(models / "tokenizer"),
        text_encoder_2=CLIPTextModelWithProjection.from_pretrained(models / "text_encoder_2"),
        tokenizer_2=CLIPTokenizer.from_pretrained(models / "tokenizer_2"),
        text_encoder_3=T5EncoderModel.from_pretrained(models / "text_encoder_3") if has_t5(models) else None,
        tokenizer_3=T5Tokenizer.from_pretrained(models / "tokenizer_3") if has_t5(models) else None,
    )
    with torch.no_grad():
        text, _, pooled, _ = pipeline.encode_prompt(
            captions, None, None, device="cpu", do_classifier_free_guidance=False, max_sequence_length=9
        )
    return text, pooled


def test_noise_prediction_is_refused(models, pairs, tmp_path):
    with pytest.raises(tidemill.InputError, match=r"train\.prediction.*flow_prediction"):
        tidemill.run(settings(models, pairs, tmp_path / "run", **{"train.prediction": "epsilon"}))


def test_plan_counts_the_tokens_of_each_encoder(models, pairs, tmp_path):
    prices = {'plan.nodes."p5.48xlarge".on_demand': 50.0, "plan.trainers.node": "p5.48xlarge"}
    rates = {"plan.rates.H100-80G.train.64": 100.0, "plan.rates.H100-80G.encode.64": 100.0}
    plan = tidemill.plan(settings(models, pairs, tmp_path / "run", **prices, **rates))
    (step,) = plan["steps"]
    rows = 6 * 4
    latents = 2 * 2 * sd3.TRANSFORMER["in_channels"] * 8 * 8
    hidden = 77 * sum(sdxl.WIDTHS) + (9 * sd3.TRANSFORMER["joint_attention_dim"] if has_t5(models) else 0)
    assert plan["storage"][0]["bytes"] == rows * (latents + 2 * (hidden + sum(sd3.POOLED)))
    assert step["tflop_per_image"] > 0
    assert step["memory"]["largest_micro_batch"] > 100


def test_t5_columns_of_other_length_are_refused(models, pairs, dataset, tmp_path):
    if not has_t5(models):
        pytest.skip("without T5 there are no such columns")
    with pytest.raises(tidemill.InputError, match="of T5 has 9 tokens"):
        train(models, pairs, dataset, tmp_path / "run", **{"encode.max_sequence_length": 7})
