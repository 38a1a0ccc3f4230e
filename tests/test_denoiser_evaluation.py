"""Own denoisers in validation and pictures, and what is said of them."""

import json
import time
from io import BytesIO

import numpy as np
import pytest
import ranks
import torch
from denoisers import ASSETS, STEPS, Listening, train
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def assert_tensorboard_has_the_pictures(run, steps):
    """Those of these steps and no others, as they are in their files."""
    files = {f"step-{step:08}.png" for step in steps}
    assert {path.name for path in (run / "previews").iterdir()} == files
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    shown = events.Images("preview")
    assert [picture.step for picture in shown] == steps
    for picture in shown:
        decoded = Image.open(BytesIO(picture.encoded_image_string))
        file = Image.open(run / "previews" / f"step-{picture.step:08}.png")
        assert (picture.width, picture.height) == decoded.size == file.size
        assert decoded.format == "PNG"
        np.testing.assert_array_equal(np.asarray(decoded), np.asarray(file))


def test_it_is_in_evaluation_mode_for_validation_and_pictures(dataset, tmp_path):
    module = Listening()
    settings = {
        "train.validation": {"every": 5, "rows": 8, "dataset": str(dataset)},
        "train.preview": {"every": 5, "prompts": ["a circle", "a square"], "steps": 3, "guidance": 2.0},
    }
    train(tmp_path, dataset, ASSETS, module, **settings)
    assert_tensorboard_has_the_pictures(tmp_path, [5, 10])
    trained = [rows for training, grad, rows in module.calls if training and grad]
    # Ten rows a step, in micro-batches of at most six.
    assert len(trained) == 2 * STEPS
    assert sum(trained) == 10 * STEPS
    others = [(training, grad) for training, grad, _ in module.calls if not (training and grad)]
    assert set(others) == {(False, False)}
    # Each picture takes its steps with its prompt and without.
    assert [rows for *_, rows in module.calls].count(4) >= 2 * 3
    assert module.hooks == 0
    module.weight.square().sum().backward()
    assert module.weight.grad is not None
    assert module.hooks == 0


def test_captions_are_dropped_in_training_only(dataset, tmp_path):
    module, texts = Listening(), {True: [], False: []}
    module.register_forward_pre_hook(lambda _, given: texts[torch.is_grad_enabled()].extend(given[2].clone()))
    validation = {"every": 5, "rows": 8, "dataset": str(dataset)}
    train(tmp_path, dataset, ASSETS, module, **{"train.caption_dropout": 1.0, "train.validation": validation})
    (file,) = dataset.glob("empty-caption-*.bin")
    empty = torch.from_numpy(np.fromfile(file, np.float16).reshape(77, -1)).float()
    trained, others = ([torch.equal(text, empty) for text in texts[trains]] for trains in (True, False))
    assert trained == [True] * 10 * STEPS
    assert len(others) > 2 * 8
    assert not any(others)


def test_time_for_validation_and_pictures_is_none_of_the_steps(dataset, tmp_path):
    module, naps = Listening(), []

    def nap(*_):
        if not torch.is_grad_enabled():
            naps.append(0.3)
            time.sleep(0.3)

    module.register_forward_pre_hook(nap)
    settings = {
        "train.phase": [{"resolution": 64, "steps": 6}],
        "train.micro_batch": 2,
        "train.validation": {"every": 5, "rows": 8, "dataset": str(dataset)},
        "train.preview": {"every": 5, "prompts": ["a circle"], "steps": 8},
    }
    train(tmp_path, dataset, ASSETS, module, **settings)
    lines = ranks.metrics(tmp_path)[4:]
    # With the weights as they are and with averaged ones; and before the first step it was tried
    # once.
    validation, pictures = 2 * 4, 8
    assert len(naps) == 1 + validation + pictures
    assert lines[0]["validation_seconds"] > 0.3 * validation
    # Validation would be part of the fifth step's time, and the pictures of the sixth one's: ten
    # rows a step.
    assert min(line["images_per_second"] for line in lines) > 10 / 2 > 10 / (0.3 * min(validation, pictures))


def test_pictures_are_always_drawn_from_the_same_noise(dataset, tmp_path):
    """Of weights that stay as they are, those of different steps are the same."""
    settings = {
        "train.learning_rate": 1e-12,
        "train.weight_decay": 0,
        "train.preview": {"every": 5, "prompts": ["a circle", "a square"], "steps": 3},
    }
    train(tmp_path, dataset, ASSETS, Listening(), **settings)
    first, second = ((tmp_path / "previews" / f"step-{step:08}.png").read_bytes() for step in (5, 10))
    assert first == second


def test_what_a_module_raises_in_pictures_ends_training_after_a_checkpoint(dataset, tmp_path):
    module = Listening()

    def fail(*_):
        if not torch.is_grad_enabled() and module.calls and ranks.steps_so_far(tmp_path):
            raise KeyError("in pictures")

    module.register_forward_pre_hook(fail)
    with pytest.raises(KeyError, match="in pictures"):
        train(tmp_path, dataset, ASSETS, module, **{"train.preview": {"every": 2, "prompts": ["a circle"]}})
    (checkpoint,) = (tmp_path / "checkpoints").glob("step-*/commit.json")
    assert 2 <= json.loads(checkpoint.read_text())["progress"]["step"] < STEPS


def test_averaged_weights_are_looked_at_and_the_others_trained(dataset, tmp_path):
    module, seen = Listening(), []

    def look(*_):
        weights = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
        if not seen or not np.array_equal(weights, seen[-1]):
            seen.append(weights)

    module.register_forward_pre_hook(look)
    settings = {
        "train.validation": {"every": 5, "rows": 8, "dataset": str(dataset)},
        "train.preview": {"every": 5, "prompts": ["a circle"], "steps": 3},
    }
    train(tmp_path, dataset, ASSETS, module, **settings)
    middle, end = ranks.state(tmp_path, 5), ranks.state(tmp_path, STEPS)
    # Validation takes both, and pictures the averaged ones.
    assert len(seen) == STEPS + 4
    np.testing.assert_array_equal(seen[5:8], [middle["master"], middle["ema"], middle["master"]])
    np.testing.assert_array_equal(seen[-2:], [end["master"], end["ema"]])
