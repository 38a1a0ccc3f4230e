"""Training of the user's own denoiser, a `torch.nn.Module`, instead of the built-in U-Net."""

import json
import os
import shutil
import signal
import threading

import numpy as np
import pytest
import tidemill
import torch
from diffusers import UNet2DConditionModel
from helpers import run_output, training
from helpers.denoisers import STEPS, RecordingDenoiser, denoiser_settings, train_denoiser

SMALL_UNET = {
    "block_out_channels": [32, 64],
    "layers_per_block": 1,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "attention_head_dim": [2, 4],
}


@pytest.fixture(scope="module")
def models(make_rng, tmp_path_factory):
    """The quickstart's models with a smaller U-Net of random weights."""
    folder = tmp_path_factory.mktemp("models") / "assets"
    shutil.copytree(training.ASSETS, folder)
    torch.manual_seed(make_rng("models").randrange(2**32))
    config = {**UNet2DConditionModel.load_config(training.ASSETS / "unet"), **SMALL_UNET}
    UNet2DConditionModel.from_config(config).save_pretrained(folder / "unet")
    return folder


def load_unet(models):
    return UNet2DConditionModel.from_pretrained(models / "unet")


def load_trained(output, models, **options):
    """The trained weights of a run as one vector."""
    module = load_unet(models)
    assert tidemill.load(denoiser_settings(output, models, {}), module, **options) == STEPS
    return to_vector(module)


def to_vector(module):
    return torch.cat([parameter.detach().flatten() for _, parameter in sorted(module.named_parameters())])


@pytest.mark.parametrize(("precision", "tolerance", "apart"), [("f32", 1e-5, 1e-3), ("bf16", 1e-2, 0.2)])
def test_diffusers_unet_trains_like_native_unet(precision, tolerance, apart, models, dataset, tmp_path):
    native, own = tmp_path / "native", tmp_path / "own"
    settings = {
        "train.precision": precision,
        "train.validation": {"every": 5, "rows": 8, "dataset": str(dataset)},
        "train.max_grad_norm": 0.5,
    }
    train_denoiser(native, dataset, models, **settings)
    train_denoiser(own, dataset, models, load_unet(models), **settings)
    # The norm is summed in f32 in another order.
    for name, rtol in (("loss", tolerance), ("grad_norm", max(tolerance, 1e-4))):
        ours, theirs = ([line[name] for line in run_output.read_metrics(side)] for side in (own, native))
        np.testing.assert_allclose(ours, theirs, rtol=rtol, err_msg=name)
    for line, theirs in zip(run_output.read_metrics(own), run_output.read_metrics(native), strict=True):
        if "validation_loss" in line:
            assert line["validation_loss"] == pytest.approx(theirs["validation_loss"], rel=tolerance)
        # PyTorch counts one side, Tidemill the other.
        flops = [side["tflops"] / side["images_per_second"] for side in (line, theirs)]
        assert flops[0] == pytest.approx(flops[1], rel=1e-9)
    first = to_vector(load_unet(models))
    for ema in (False, True):
        ours, theirs = load_trained(own, models, ema=ema), load_trained(native, models, ema=ema)
        share = (ours - theirs).norm() / (theirs - first).norm()
        print(f"{precision}, ema={ema}: apart by {share:.1e} of the update")
        assert share <= apart


def test_compiled_denoiser_resumes_and_module_is_usable_afterwards(models, dataset, tmp_path):
    """The module is compiled in one of the runs, and has frozen parameters."""

    def fresh():
        module = load_unet(models)
        module.conv_in.requires_grad_(False)
        return module

    def steps(n):
        # Micro-batches of equal size, because each size is compiled.
        return {**training.phase(n), "train.micro_batch": 5}

    straight, broken = fresh(), fresh()
    train_denoiser(tmp_path / "straight", dataset, models, straight, **steps(STEPS))
    train_denoiser(
        tmp_path / "broken", dataset, models, torch.compile(broken, backend="aot_eager"), **steps(5)
    )
    assert not torch.equal(to_vector(broken), to_vector(fresh()))
    result = train_denoiser(tmp_path / "broken", dataset, models, fresh(), **steps(STEPS))
    assert result["resumed_at"] == 5
    np.testing.assert_allclose(
        run_output.read_losses(tmp_path / "broken"), run_output.read_losses(tmp_path / "straight"), rtol=1e-4
    )
    # In f32 with a single rank the module has exactly the last weights.
    assert torch.equal(to_vector(straight), load_trained(tmp_path / "straight", models, ema=False))
    assert torch.equal(straight.conv_in.weight, fresh().conv_in.weight)
    frozen = {name for name, parameter in straight.named_parameters() if not parameter.requires_grad}
    assert frozen == {"conv_in.weight", "conv_in.bias"}
    # The module belongs to the caller again: its parameters keep gradients.
    text = torch.randn(1, 77, straight.config.cross_attention_dim)
    straight(torch.randn(1, 4, 8, 8), torch.tensor([3]), text).sample.square().mean().backward()
    assert {name for name, parameter in straight.named_parameters() if parameter.grad is None} == frozen


def test_gradient_checkpointing_uses_method_of_module(models, dataset, tmp_path):
    train_denoiser(tmp_path / "kept", dataset, models, load_unet(models))
    module = load_unet(models)
    train_denoiser(tmp_path / "again", dataset, models, module, **{"train.gradient_checkpointing": True})
    assert module.is_gradient_checkpointing
    assert run_output.read_losses(tmp_path / "again") == pytest.approx(
        run_output.read_losses(tmp_path / "kept"), rel=1e-5
    )


def test_channels_last_weights_keep_memory_format(models, dataset, tmp_path):
    def weights_of(module):
        return module.down_blocks[0].resnets[0].conv1.weight

    seen, module = set(), load_unet(models).to(memory_format=torch.channels_last)
    module.register_forward_pre_hook(lambda *_: seen.add(weights_of(module).stride()))
    strides = weights_of(module).stride()
    assert strides != weights_of(load_unet(models)).stride()
    train_denoiser(tmp_path / "row_major", dataset, models, load_unet(models))
    train_denoiser(tmp_path / "channels_last", dataset, models, module)
    assert seen == {strides} == {weights_of(module).stride()}
    losses = [run_output.read_losses(tmp_path / order) for order in ("channels_last", "row_major")]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    # Weights can be loaded into a module of either format.
    trained = load_trained(tmp_path / "channels_last", models, ema=False)
    torch.testing.assert_close(
        trained, load_trained(tmp_path / "row_major", models, ema=False), rtol=0, atol=1e-3
    )
    assert torch.equal(trained, to_vector(module))


WORKER = """
import json, os, sys, tidemill, torch
from diffusers import UNet2DConditionModel

torch.manual_seed(int(sys.argv[1]))
config = UNet2DConditionModel.load_config(sys.argv[2])
# The other rank has other weights, which the first rank's replace.
if int(os.environ["RANK"]):
    torch.manual_seed(0)
run, module = json.loads(sys.argv[3]), UNet2DConditionModel.from_config(config)
result = tidemill.train(run, denoiser=module)
assert result["finished"], result
# The checkpoint is visible to all ranks.
assert tidemill.load(run, module) == result["steps"]
"""


def test_two_ranks_train_denoiser_like_one(rng, dataset, tmp_path):
    seed, config = rng.randrange(1, 2**32), str(training.ASSETS / "unet")
    torch.manual_seed(seed)
    train_denoiser(
        tmp_path / "alone",
        dataset,
        training.ASSETS,
        UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(config)),
    )
    (tmp_path / "worker.py").write_text(WORKER)
    run = json.dumps(denoiser_settings(tmp_path / "together", training.ASSETS, {}))
    training.link_dataset(tmp_path / "together", dataset)
    command = [str(tmp_path / "worker.py"), str(seed), config, run]
    code, log = training.run_together(training.launch_ranks(command, 2))
    assert code == 0, log
    np.testing.assert_allclose(
        run_output.read_losses(tmp_path / "together"), run_output.read_losses(tmp_path / "alone"), rtol=1e-4
    )


def test_stop_event_ends_training_with_checkpoint(dataset, tmp_path):
    event = threading.Event()
    module = RecordingDenoiser()
    run = denoiser_settings(tmp_path, training.ASSETS, {})
    training.link_dataset(tmp_path, dataset)
    at = {3: event.set}
    result = tidemill.train(
        run, listener=lambda line: at.get(line["step"], int)(), stop=event, denoiser=module
    )
    assert (result["finished"], result["steps"]) == (False, 3)
    result = tidemill.train(run, denoiser=module)
    assert (result["finished"], result["resumed_at"]) == (True, 3)
    training.link_dataset(tmp_path / "other", dataset)
    with pytest.raises(AttributeError, match="is_set"):
        tidemill.train(
            denoiser_settings(tmp_path / "other", training.ASSETS, {}), stop="now", denoiser=module
        )


@pytest.fixture
def python_sigint():
    """Python's own handler of SIGINT, which a runner of tests may have replaced."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_sigint")
def test_ctrl_c_ends_training_with_checkpoint(dataset, tmp_path):
    module = RecordingDenoiser()
    interrupt = module.register_forward_hook(
        lambda *_: os.kill(os.getpid(), signal.SIGINT) if len(module.calls) == 6 else None
    )
    result = train_denoiser(tmp_path, dataset, training.ASSETS, module)
    assert (result["finished"], len(module.calls) < 2 * STEPS) == (False, True)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interrupt.remove()
    again = train_denoiser(tmp_path, dataset, training.ASSETS, module)
    assert (again["finished"], again["resumed_at"]) == (True, result["steps"])


def test_leftover_gradients_do_not_affect_first_step(dataset, tmp_path):
    clean, used = FaultyModule(), FaultyModule()
    used.load_state_dict(clean.state_dict())
    used.conv.weight.grad = torch.full_like(used.conv.weight, 50.0)
    train_denoiser(tmp_path / "clean", dataset, training.ASSETS, clean)
    train_denoiser(tmp_path / "used", dataset, training.ASSETS, used)
    assert run_output.read_losses(tmp_path / "clean") == run_output.read_losses(tmp_path / "used")


def test_failure_in_validation_restores_autograd_mode(dataset, tmp_path):
    settings = {"train.validation": {"every": 2, "rows": 8, "dataset": str(dataset)}}
    with pytest.raises(KeyError, match="in evaluation"):
        train_denoiser(tmp_path, dataset, training.ASSETS, FaultyModule("evaluation"), **settings)
    assert torch.is_grad_enabled()
    train_denoiser(tmp_path / "next", dataset, training.ASSETS, FaultyModule())


def test_denoiser_is_checked_only_at_resolutions_of_phases(dataset, tmp_path):
    settings = {name: training.SETTINGS[name] for name in ("source", "models.path")}
    source = {"source.uri": f"{dataset.parent}/data/*.parquet", "prepare.resolutions": [64, 32]}
    tidemill.preprocess({**settings, **source, "output": str(tmp_path)})
    train_denoiser(
        tmp_path / "run",
        tmp_path / "dataset",
        training.ASSETS,
        FaultyModule("fixed"),
        **{"prepare.resolutions": [64, 32]},
    )


class FaultyModule(torch.nn.Module):
    """A small module with one defect."""

    def __init__(self, defect=None):
        super().__init__()
        self.defect, self.calls = defect, 0
        self.conv = torch.nn.Conv2d(4, 4, 3, padding=1)
        if defect == "statistics":
            self.norm = torch.nn.BatchNorm2d(4)
        elif defect == "half":
            self.half()
        elif defect == "frozen":
            self.requires_grad_(False)

    def forward(self, sample, timesteps, text):
        self.calls += 1
        if self.defect == "shape":
            return self.conv(sample)[:, :2]
        if self.defect == "list":
            return [sample]
        if self.defect == "width":
            return self.conv(sample) + text @ torch.ones(3, 3)
        if self.defect == "fixed":
            return self.conv(sample) + torch.zeros(1, 4, 8, 8)
        # The first call without gradients is the check before training.
        if self.defect == "evaluation" and not self.training and self.calls > 1:
            raise KeyError("in evaluation")
        if self.defect == "late" and self.calls > 4:
            raise KeyError("after four calls")
        return (self.conv(sample),)


class TwoInputs(torch.nn.Linear):
    def forward(self, x, t):
        return x


@pytest.mark.parametrize(
    ("module", "settings", "message"),
    [
        ("unet", {}, "expected a torch.nn.Module, got a str"),
        (TwoInputs(2, 2), {}, r"TwoInputs.forward\(x, t\) cannot be called as forward\(sample, timesteps, "),
        (FaultyModule("frozen"), {}, "none of FaultyModule's 2 parameters requires a gradient"),
        (
            FaultyModule("half"),
            {},
            r"conv.weight \(torch.float16\), conv.bias \(torch.float16\) are not float32",
        ),
        (
            FaultyModule("statistics"),
            {},
            "norm.num_batches_tracked, norm.running_mean, norm.running_var beside",
        ),
        (
            FaultyModule("shape"),
            {},
            r"predicts shape \[2, 8, 8\] for a row of latents \[4, 8, 8\] and text \[77, ",
        ),
        (FaultyModule("list"), {}, "returns a list, not a tensor"),
        (FaultyModule("width"), {}, "does not take a row of latents .*: RuntimeError: mat1 and mat2"),
        (
            FaultyModule(),
            {"train.gradient_checkpointing": True},
            "FaultyModule has no method enable_gradient_checkpointing",
        ),
        (
            FaultyModule(),
            {"train.gradient_checkpointing": "selective"},
            "decides itself what it computes again: set true or false",
        ),
        (FaultyModule(), {"train.freeze": ["*"]}, "no parameter is left to train"),
        (
            FaultyModule(),
            {"train.preview": {"prompts": ["a"], "steps": 1000}},
            "sampler: steps = 1000 must be",
        ),
    ],
)
def test_untrainable_denoiser_is_refused_before_first_step(module, settings, message, dataset, tmp_path):
    with pytest.raises(tidemill.InputError, match=message):
        train_denoiser(tmp_path, dataset, training.ASSETS, module, **settings)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_exception_of_denoiser_is_raised_unchanged(dataset, tmp_path):
    module = FaultyModule("late")
    with pytest.raises(KeyError, match="after four calls") as raised:
        train_denoiser(tmp_path, dataset, training.ASSETS, module)
    assert raised.traceback[-1].name == "forward"
    assert all(parameter.dtype == torch.float32 for parameter in module.parameters())


def test_export_refuses_run_trained_with_other_scheduler(models, dataset, tmp_path):
    trained = {**training.phase(2), "train.prediction": "v_prediction"}
    train_denoiser(tmp_path, dataset, models, **trained)
    for verb in (tidemill.export, tidemill.sample):
        with pytest.raises(tidemill.InputError, match="another scheduler"):
            verb(denoiser_settings(tmp_path, models, {"sample.prompts": ["a circle"]}))
    tidemill.export(denoiser_settings(tmp_path, models, trained))
    scheduler = json.loads((tmp_path / "export/scheduler/scheduler_config.json").read_text())
    assert scheduler["prediction_type"] == "v_prediction"


def test_checkpoint_of_other_network_is_refused(models, dataset, tmp_path):
    train_denoiser(tmp_path, dataset, training.ASSETS, FaultyModule())
    module, before = load_unet(models), to_vector(load_unet(models))
    with pytest.raises(tidemill.InputError, match="another denoiser"):
        train_denoiser(tmp_path, dataset, training.ASSETS, module, **{"train.precision": "bf16"})
    assert torch.equal(to_vector(module), before)
    with pytest.raises(tidemill.InputError, match="another network"):
        tidemill.load(denoiser_settings(tmp_path, training.ASSETS, {}), load_unet(models))
    with pytest.raises(tidemill.InputError, match="another network"):
        tidemill.export(denoiser_settings(tmp_path, training.ASSETS, {}))
