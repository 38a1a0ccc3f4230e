"""The examples of training loops that are not Tidemill's own, trained for a few steps."""

import importlib.util
from itertools import islice
from pathlib import Path

import tidemill
import torch
from helpers import training
from torchdata.stateful_dataloader import StatefulDataLoader

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def load_example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(dataset, output, steps):
    batch = ["--resolution", "64", "--global-batch", "4", "--steps", str(steps)]
    return [str(dataset), "--models", str(training.ASSETS), "--output", str(output), *batch]


def test_accelerate_resumes_exactly(dataset, tmp_path):
    example = load_example("accelerate_training")

    def train(output, steps, seed):
        torch.manual_seed(seed)
        module = example.train(example.parse_arguments(arguments(dataset, tmp_path / output, steps)))
        return [parameter.detach().clone() for parameter in module.parameters()]

    whole, start = train("whole", 4, seed=0), train("parts", 2, seed=0)
    # accelerate's checkpoint has the random state, too.
    resumed = train("parts", 4, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(whole, start, strict=True))


def test_lightning_trains_and_resumes(dataset, tmp_path):
    example = load_example("lightning_training")
    before = example.LatentDiffusion(str(training.ASSETS), 1e-4).unet.state_dict()
    for steps in (2, 3):
        module = example.train(example.parse_arguments(arguments(dataset, tmp_path, steps)))
    saved = torch.load(tmp_path / "last.ckpt", weights_only=False)
    assert saved["global_step"] == 3
    assert all(value.isfinite().all() for value in module.unet.state_dict().values())
    assert not torch.equal(module.unet.state_dict()["conv_in.weight"], before["conv_in.weight"])


def test_stateful_data_loader_resumes(dataset):
    def open_loader():
        data = tidemill.StreamDataset(dataset, resolution=64, global_batch=8)
        return StatefulDataLoader(data, batch_size=None)

    whole = [batch["sample_ids"].tolist() for batch in islice(open_loader(), 6)]
    first = open_loader()
    assert [batch["sample_ids"].tolist() for batch in islice(first, 2)] == whole[:2]
    second = open_loader()
    second.load_state_dict(first.state_dict())
    assert [batch["sample_ids"].tolist() for batch in islice(second, 4)] == whole[2:]
