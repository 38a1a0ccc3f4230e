"""Own denoisers, `torch.nn.Module`s, in the place of the built-in U-Net."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import ranks
import tidemill
import torch
from denoisers import ASSETS, STEPS, Listening, settings_of, train
from diffusers import UNet2DConditionModel

SMALLER = {
    "block_out_channels": [32, 64],
    "layers_per_block": 1,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "attention_head_dim": [2, 4],
}


@pytest.fixture(scope="module")
def models(rng, tmp_path_factory):
    """The quickstart's models with a smaller U-Net, of random weights."""
    folder = tmp_path_factory.mktemp("models") / "assets"
    shutil.copytree(ASSETS, folder)
    torch.manual_seed(rng.randrange(2**32))
    config = {**UNet2DConditionModel.load_config(ASSETS / "unet"), **SMALLER}
    UNet2DConditionModel.from_config(config).save_pretrained(folder / "unet")
    return folder


def unet(models):
    return UNet2DConditionModel.from_pretrained(models / "unet")


def loaded(output, models, **how):
    """The weights that a run has trained, as one vector."""
    module = unet(models)
    assert tidemill.load(settings_of(output, models, {}), module, **how) == STEPS
    return vector(module)


def vector(module):
    return torch.cat([parameter.detach().flatten() for _, parameter in sorted(module.named_parameters())])


@pytest.mark.parametrize(("precision", "tolerance", "apart"), [("f32", 1e-5, 1e-3), ("bf16", 1e-2, 0.2)])
def test_diffusers_unet_does_as_the_native_one(precision, tolerance, apart, models, dataset, tmp_path):
    native, own = tmp_path / "native", tmp_path / "own"
    settings = {
        "train.precision": precision,
        "train.validation": {"every": 5, "rows": 8, "dataset": str(dataset)},
        "train.max_grad_norm": 0.5,
    }
    train(native, dataset, models, **settings)
    train(own, dataset, models, unet(models), **settings)
    # The norm is summed in f32, in another order.
    for name, rtol in (("loss", tolerance), ("grad_norm", max(tolerance, 1e-4))):
        ours, theirs = ([line[name] for line in ranks.metrics(side)] for side in (own, native))
        np.testing.assert_allclose(ours, theirs, rtol=rtol, err_msg=name)
    for line, theirs in zip(ranks.metrics(own), ranks.metrics(native), strict=True):
        if "validation_loss" in line:
            assert line["validation_loss"] == pytest.approx(theirs["validation_loss"], rel=tolerance)
        # Counted by PyTorch and by us.
        flops = [side["tflops"] / side["images_per_second"] for side in (line, theirs)]
        assert flops[0] == pytest.approx(flops[1], rel=1e-9)
    first = vector(unet(models))
    for ema in (False, True):
        ours, theirs = loaded(own, models, ema=ema), loaded(native, models, ema=ema)
        share = (ours - theirs).norm() / (theirs - first).norm()
        print(f"{precision}, ema={ema}: apart by {share:.1e} of the update")
        assert share <= apart


def test_a_run_goes_on_and_gives_the_module_back(models, dataset, tmp_path):
    """Also compiled, and with parameters that are to stay as they are."""

    def fresh():
        module = unet(models)
        module.conv_in.requires_grad_(False)
        return module

    def steps(n):
        # Another size of micro-batches would be compiled, too.
        return {"train.phase": [{"resolution": 64, "steps": n}], "train.micro_batch": 5}

    straight, broken = fresh(), fresh()
    train(tmp_path / "straight", dataset, models, straight, **steps(STEPS))
    train(tmp_path / "broken", dataset, models, torch.compile(broken, backend="aot_eager"), **steps(5))
    assert not torch.equal(vector(broken), vector(fresh()))
    result = train(tmp_path / "broken", dataset, models, fresh(), **steps(STEPS))
    assert result["resumed_at"] == 5
    np.testing.assert_allclose(
        ranks.losses(tmp_path / "broken"), ranks.losses(tmp_path / "straight"), rtol=1e-4
    )
    # In f32 without other ranks the module has the last weights.
    assert torch.equal(vector(straight), loaded(tmp_path / "straight", models, ema=False))
    assert torch.equal(straight.conv_in.weight, fresh().conv_in.weight)
    frozen = {name for name, parameter in straight.named_parameters() if not parameter.requires_grad}
    assert frozen == {"conv_in.weight", "conv_in.bias"}
    # And is the caller's again: gradients stay with its parameters.
    text = torch.randn(1, 77, straight.config.cross_attention_dim)
    straight(torch.randn(1, 4, 8, 8), torch.tensor([3]), text).sample.square().mean().backward()
    assert {name for name, parameter in straight.named_parameters() if parameter.grad is None} == frozen


def test_gradients_are_computed_again_if_the_module_can(models, dataset, tmp_path):
    train(tmp_path / "kept", dataset, models, unet(models))
    module = unet(models)
    train(tmp_path / "again", dataset, models, module, **{"train.gradient_checkpointing": True})
    assert module.is_gradient_checkpointing
    assert ranks.losses(tmp_path / "again") == pytest.approx(ranks.losses(tmp_path / "kept"), rel=1e-5)


def test_weights_keep_their_memory_format(models, dataset, tmp_path):
    def weights_of(module):
        return module.down_blocks[0].resnets[0].conv1.weight

    seen, module = set(), unet(models).to(memory_format=torch.channels_last)
    module.register_forward_pre_hook(lambda *_: seen.add(weights_of(module).stride()))
    strides = weights_of(module).stride()
    assert strides != weights_of(unet(models)).stride()
    train(tmp_path / "row_major", dataset, models, unet(models))
    train(tmp_path / "channels_last", dataset, models, module)
    assert seen == {strides} == {weights_of(module).stride()}
    losses = [ranks.losses(tmp_path / order) for order in ("channels_last", "row_major")]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    # They are read into a module of either.
    trained = loaded(tmp_path / "channels_last", models, ema=False)
    torch.testing.assert_close(trained, loaded(tmp_path / "row_major", models, ema=False), rtol=0, atol=1e-3)
    assert torch.equal(trained, vector(module))


WORKER = """
import json, os, sys, tidemill, torch
from diffusers import UNet2DConditionModel

torch.manual_seed(int(sys.argv[1]))
config = UNet2DConditionModel.load_config(sys.argv[2])
# Other ranks have other weights, and do not keep them.
if int(os.environ["RANK"]):
    torch.manual_seed(0)
run, module = json.loads(sys.argv[3]), UNet2DConditionModel.from_config(config)
result = tidemill.train(run, denoiser=module)
assert result["finished"], result
# Which is there, whoever has written it.
assert tidemill.load(run, module) == result["steps"]
"""


def test_ranks_train_it_together(rng, dataset, tmp_path):
    seed, config = rng.randrange(1, 2**32), str(ASSETS / "unet")
    torch.manual_seed(seed)
    train(
        tmp_path / "alone",
        dataset,
        ASSETS,
        UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(config)),
    )
    (tmp_path / "worker.py").write_text(WORKER)
    run = json.dumps(settings_of(tmp_path / "together", ASSETS, {}))
    ranks.link(tmp_path / "together", dataset)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launch, str(tmp_path / "worker.py"), str(seed), config, run]
    done = subprocess.run(command, env=ranks.environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(
        ranks.losses(tmp_path / "together"), ranks.losses(tmp_path / "alone"), rtol=1e-4
    )


def test_an_event_stops_it(dataset, tmp_path):
    event = threading.Event()
    module = Listening()
    run = settings_of(tmp_path, ASSETS, {})
    ranks.link(tmp_path, dataset)
    at = {3: event.set}
    result = tidemill.train(
        run, listener=lambda line: at.get(line["step"], int)(), stop=event, denoiser=module
    )
    assert (result["finished"], result["steps"]) == (False, 3)
    result = tidemill.train(run, denoiser=module)
    assert (result["finished"], result["resumed_at"]) == (True, 3)
    ranks.link(tmp_path / "other", dataset)
    with pytest.raises(AttributeError, match="is_set"):
        tidemill.train(settings_of(tmp_path / "other", ASSETS, {}), stop="now", denoiser=module)


def test_ctrl_c_stops_it_with_a_checkpoint(dataset, tmp_path):
    module = Listening()
    interrupt = module.register_forward_hook(
        lambda *_: os.kill(os.getpid(), signal.SIGINT) if len(module.calls) == 6 else None
    )
    result = train(tmp_path, dataset, ASSETS, module)
    assert (result["finished"], len(module.calls) < 2 * STEPS) == (False, True)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interrupt.remove()
    again = train(tmp_path, dataset, ASSETS, module)
    assert (again["finished"], again["resumed_at"]) == (True, result["steps"])


def test_gradients_of_before_are_not_part_of_the_first_step(dataset, tmp_path):
    clean, used = Odd(), Odd()
    used.load_state_dict(clean.state_dict())
    used.conv.weight.grad = torch.full_like(used.conv.weight, 50.0)
    train(tmp_path / "clean", dataset, ASSETS, clean)
    train(tmp_path / "used", dataset, ASSETS, used)
    assert ranks.losses(tmp_path / "clean") == ranks.losses(tmp_path / "used")


def test_what_fails_in_validation_leaves_autograd_as_it_was(dataset, tmp_path):
    settings = {"train.validation": {"every": 2, "rows": 8, "dataset": str(dataset)}}
    with pytest.raises(KeyError, match="in evaluation"):
        train(tmp_path, dataset, ASSETS, Odd("evaluation"), **settings)
    assert torch.is_grad_enabled()
    train(tmp_path / "next", dataset, ASSETS, Odd())


def test_it_need_not_take_resolutions_that_no_phase_has(dataset, tmp_path):
    settings = {name: ranks.SETTINGS[name] for name in ("source", "models.path")}
    source = {"source.uri": f"{dataset.parent}/data/*.parquet", "prepare.resolutions": [64, 32]}
    tidemill.preprocess({**settings, **source, "output": str(tmp_path)})
    train(tmp_path / "run", tmp_path / "dataset", ASSETS, Odd("fixed"), **{"prepare.resolutions": [64, 32]})


class Odd(torch.nn.Module):
    """A small module, with one thing wrong with it."""

    def __init__(self, wrong=None):
        super().__init__()
        self.wrong, self.calls = wrong, 0
        self.conv = torch.nn.Conv2d(4, 4, 3, padding=1)
        if wrong == "statistics":
            self.norm = torch.nn.BatchNorm2d(4)
        elif wrong == "half":
            self.half()
        elif wrong == "frozen":
            self.requires_grad_(False)

    def forward(self, sample, timesteps, text):
        self.calls += 1
        if self.wrong == "shape":
            return self.conv(sample)[:, :2]
        if self.wrong == "list":
            return [sample]
        if self.wrong == "width":
            return self.conv(sample) + text @ torch.ones(3, 3)
        if self.wrong == "fixed":
            return self.conv(sample) + torch.zeros(1, 4, 8, 8)
        # Whether it takes a row is asked without gradients, too.
        if self.wrong == "evaluation" and not self.training and self.calls > 1:
            raise KeyError("in evaluation")
        if self.wrong == "late" and self.calls > 4:
            raise KeyError("after four calls")
        return (self.conv(sample),)


class TwoInputs(torch.nn.Linear):
    def forward(self, x, t):
        return x


@pytest.mark.parametrize(
    ("module", "settings", "says"),
    [
        ("unet", {}, "expected a torch.nn.Module, got a str"),
        (TwoInputs(2, 2), {}, r"TwoInputs.forward\(x, t\) cannot be called as forward\(sample, timesteps, "),
        (Odd("frozen"), {}, "none of Odd's 2 parameters requires a gradient"),
        (Odd("half"), {}, r"conv.weight \(torch.float16\), conv.bias \(torch.float16\) are not float32"),
        (Odd("statistics"), {}, "norm.num_batches_tracked, norm.running_mean, norm.running_var beside"),
        (Odd("shape"), {}, r"predicts shape \[2, 8, 8\] for a row of latents \[4, 8, 8\] and text \[77, "),
        (Odd("list"), {}, "returns a list, not a tensor"),
        (Odd("width"), {}, "does not take a row of latents .*: RuntimeError: mat1 and mat2"),
        (Odd(), {"train.gradient_checkpointing": True}, "Odd has no method enable_gradient_checkpointing"),
        (Odd(), {"train.freeze": ["*"]}, "no parameter is left to train"),
        (
            Odd(),
            {"train.preview": {"prompts": ["a"], "steps": 1000}},
            "sampler: steps = 1000 must be",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_the_first_step(module, settings, says, dataset, tmp_path):
    with pytest.raises(tidemill.InputError, match=says):
        train(tmp_path, dataset, ASSETS, module, **settings)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_what_the_module_raises_comes_out(dataset, tmp_path):
    module = Odd("late")
    with pytest.raises(KeyError, match="after four calls") as raised:
        train(tmp_path, dataset, ASSETS, module)
    assert raised.traceback[-1].name == "forward"
    assert all(parameter.dtype == torch.float32 for parameter in module.parameters())


def test_what_was_trained_with_another_schedule_is_not_exported(models, dataset, tmp_path):
    trained = {"train.phase": [{"resolution": 64, "steps": 2}], "train.prediction": "v_prediction"}
    train(tmp_path, dataset, models, **trained)
    for verb in (tidemill.export, tidemill.sample):
        with pytest.raises(tidemill.InputError, match="another scheduler"):
            verb(settings_of(tmp_path, models, {"sample.prompts": ["a circle"]}))
    tidemill.export(settings_of(tmp_path, models, trained))
    scheduler = json.loads((tmp_path / "export/scheduler/scheduler_config.json").read_text())
    assert scheduler["prediction_type"] == "v_prediction"


def test_checkpoints_of_another_network_are_refused(models, dataset, tmp_path):
    train(tmp_path, dataset, ASSETS, Odd())
    module, before = unet(models), vector(unet(models))
    with pytest.raises(tidemill.InputError, match="another denoiser"):
        train(tmp_path, dataset, ASSETS, module, **{"train.precision": "bf16"})
    assert torch.equal(vector(module), before)
    with pytest.raises(tidemill.InputError, match="another network"):
        tidemill.load(settings_of(tmp_path, ASSETS, {}), unet(models))
    with pytest.raises(tidemill.InputError, match="another network"):
        tidemill.export(settings_of(tmp_path, ASSETS, {}))
