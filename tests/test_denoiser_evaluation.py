"""The user's own denoiser in validation and previews."""

import json
import time
from io import BytesIO

import numpy as np
import pytest
import torch
from helpers import run_output, training
from helpers.denoisers import STEPS, RecordingDenoiser, train_denoiser
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def assert_tensorboard_has_previews(run, steps):
    """TensorBoard has the previews of exactly these steps, equal to the files."""
    files = {f"step-{step:08}.png" for step in steps}
    assert {path.name for path in (run / "previews").iterdir()} == files
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    shown = events.Images("preview")
    assert [image.step for image in shown] == steps
    for image in shown:
        decoded = Image.open(BytesIO(image.encoded_image_string))
        file = Image.open(run / "previews" / f"step-{image.step:08}.png")
        assert (image.width, image.height) == decoded.size == file.size
        assert decoded.format == "PNG"
        np.testing.assert_array_equal(np.asarray(decoded), np.asarray(file))


def test_validation_and_previews_use_evaluation_mode(dataset, tmp_path):
    module = RecordingDenoiser()
    settings = {
        "train.validation": {"every": 5, "rows": 8, "dataset": str(dataset)},
        "train.preview": {"every": 5, "prompts": ["a circle", "a square"], "steps": 3, "guidance": 2.0},
    }
    train_denoiser(tmp_path, dataset, training.ASSETS, module, **settings)
    assert_tensorboard_has_previews(tmp_path, [5, 10])
    trained = [rows for is_training, grad, rows in module.calls if is_training and grad]
    # Ten rows a step, in micro-batches of at most six.
    assert len(trained) == 2 * STEPS
    assert sum(trained) == 10 * STEPS
    others = [(is_training, grad) for is_training, grad, _ in module.calls if not (is_training and grad)]
    assert set(others) == {(False, False)}
    # Guidance takes each step with the prompt and without: four rows for two images.
    assert [rows for *_, rows in module.calls].count(4) >= 2 * 3
    assert module.hooks == 0
    module.weight.square().sum().backward()
    assert module.weight.grad is not None
    assert module.hooks == 0


def test_caption_dropout_applies_only_to_training(dataset, tmp_path):
    module, texts = RecordingDenoiser(), {True: [], False: []}
    module.register_forward_pre_hook(lambda _, given: texts[torch.is_grad_enabled()].extend(given[2].clone()))
    validation = {"every": 5, "rows": 8, "dataset": str(dataset)}
    train_denoiser(
        tmp_path,
        dataset,
        training.ASSETS,
        module,
        **{"train.caption_dropout": 1.0, "train.validation": validation},
    )
    (file,) = dataset.glob("empty-caption-*.bin")
    empty = torch.from_numpy(np.fromfile(file, np.float16).reshape(77, -1)).float()
    trained, others = ([torch.equal(text, empty) for text in texts[trains]] for trains in (True, False))
    assert trained == [True] * 10 * STEPS
    assert len(others) > 2 * 8
    assert not any(others)


def test_throughput_excludes_validation_and_previews(dataset, tmp_path):
    module, naps = RecordingDenoiser(), []

    def nap(*_):
        if not torch.is_grad_enabled():
            naps.append(0.3)
            time.sleep(0.3)

    module.register_forward_pre_hook(nap)
    settings = {
        **training.phase(6),
        "train.micro_batch": 2,
        "train.validation": {"every": 5, "rows": 8, "dataset": str(dataset)},
        "train.preview": {"every": 5, "prompts": ["a circle"], "steps": 8},
    }
    train_denoiser(tmp_path, dataset, training.ASSETS, module, **settings)
    lines = run_output.read_metrics(tmp_path)[4:]
    # Validation uses the last and the averaged weights; the check before training is one call.
    validation, previews = 2 * 4, 8
    assert len(naps) == 1 + validation + previews
    assert lines[0]["validation_seconds"] > 0.3 * validation
    # If they counted, validation would slow down step 5, and previews step 6 (ten rows a step).
    assert min(line["images_per_second"] for line in lines) > 10 / 2 > 10 / (0.3 * min(validation, previews))


def test_previews_use_same_noise_at_every_step(dataset, tmp_path):
    """With unchanged weights the previews of different steps are equal."""
    settings = {
        "train.learning_rate": 1e-12,
        "train.weight_decay": 0,
        "train.preview": {"every": 5, "prompts": ["a circle", "a square"], "steps": 3},
    }
    train_denoiser(tmp_path, dataset, training.ASSETS, RecordingDenoiser(), **settings)
    first, second = ((tmp_path / "previews" / f"step-{step:08}.png").read_bytes() for step in (5, 10))
    assert first == second


def test_exception_in_preview_ends_training_after_checkpoint(dataset, tmp_path):
    module = RecordingDenoiser()

    def fail(*_):
        if not torch.is_grad_enabled() and module.calls and run_output.count_steps(tmp_path):
            raise KeyError("in preview")

    module.register_forward_pre_hook(fail)
    with pytest.raises(KeyError, match="in preview"):
        train_denoiser(
            tmp_path,
            dataset,
            training.ASSETS,
            module,
            **{"train.preview": {"every": 2, "prompts": ["a circle"]}},
        )
    (checkpoint,) = (tmp_path / "checkpoints").glob("step-*/commit.json")
    assert 2 <= json.loads(checkpoint.read_text())["progress"]["step"] < STEPS


def test_validation_and_previews_use_averaged_weights(dataset, tmp_path):
    module, seen = RecordingDenoiser(), []

    def look(*_):
        weights = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
        if not seen or not np.array_equal(weights, seen[-1]):
            seen.append(weights)

    module.register_forward_pre_hook(look)
    settings = {
        "train.validation": {"every": 5, "rows": 8, "dataset": str(dataset)},
        "train.preview": {"every": 5, "prompts": ["a circle"], "steps": 3},
    }
    train_denoiser(tmp_path, dataset, training.ASSETS, module, **settings)
    middle, end = run_output.read_state(tmp_path, 5), run_output.read_state(tmp_path, STEPS)
    # Validation uses both kinds of weights, previews only the averaged ones.
    assert len(seen) == STEPS + 4
    np.testing.assert_array_equal(seen[5:8], [middle["master"], middle["ema"], middle["master"]])
    np.testing.assert_array_equal(seen[-2:], [end["master"], end["ema"]])
