"""Training on a fake GPU that computes nothing, but counts what is asked of it."""

import json
import shutil
import subprocess
import sys

import pytest
import tidemill
from helpers import run_output, training
from helpers.gpu import CHECKS, EMA, GPU, STEPS_BEFORE_CAPTURE, phases, run_command, train, train_with_log

# Tidemill's own kernels, which NVRTC compiles: norms, GEGLU, AdamW.
OWN_KERNELS = {
    "group_norm_apply",
    "group_norm_x_grad",
    "geglu_forward",
    "geglu_backward",
    "add_layer_norm_forward",
    "add_layer_norm_backward",
    "adamw_step",
}


def test_cuda_graph_contains_the_whole_step(gpu, dataset, tmp_path):
    reports = {}
    for recorded in (False, True):
        settings = {"train.cuda_graph": recorded, "train.phase": phases(8), "train.ema": EMA}
        reports[recorded] = train(gpu, tmp_path / str(recorded), dataset, **settings)
        lines = run_output.read_metrics(tmp_path / str(recorded))
        assert [line["step"] for line in lines] == list(range(1, 9))
    plain, recorded = reports[False], reports[True]
    # The amount is read back from the fake GPU, where every value is 1.
    assert [line["gpu_memory_mib"] for line in lines] == [[1]] * 8
    assert (plain.captures, plain.violations, recorded.violations, recorded.escaped) == (0, 0, 0, 0)
    assert (recorded.captures, recorded.replays) == (1, 8 - STEPS_BEFORE_CAPTURE + CHECKS)
    # cuDNN computes attention and convolutions: there is no separate softmax.
    assert OWN_KERNELS | {"cudnnBackendExecute"} <= recorded.kernels.keys()
    assert not any("softmax" in name.lower() for name in recorded.kernels)
    # Outside of a replay only inputs are copied to the device, and results to the host.
    assert recorded.replayed == recorded.captured * recorded.replays
    # The step that is captured is computed once more, to compare.
    per_step = (plain.launches - recorded.launches + recorded.captured) / (8 - STEPS_BEFORE_CAPTURE - 1)
    print(f"{recorded.captured} kernels in a recorded step, {per_step:.0f} fewer launches for each replay")
    assert 0.98 < recorded.captured / per_step < 1.02


@pytest.mark.parametrize("recorded", [False, True])
def test_steps_do_not_synchronize_with_gpu(recorded, gpu, dataset, tmp_path):
    waits = []
    for steps in (10, 25):
        settings = {
            "train.cuda_graph": recorded,
            "train.phase": phases(steps),
            "train.log_every": 1000,
            "train.ema": EMA,
        }
        waits.append(train(gpu, tmp_path / str(steps), dataset, **settings).waits)
    # Only the metrics of each step are waited for, in the end, when they are ready.
    assert waits[1] - waits[0] == 25 - 10


@pytest.mark.parametrize("is_gpu_the_limit", [False, True])
def test_steps_are_recorded_where_the_host_is_the_limit(
    is_gpu_the_limit, gpu, dataset, tmp_path, monkeypatch
):
    if is_gpu_the_limit:
        monkeypatch.setenv("NULL_GPU_LAUNCH_US", "300")
    settings = {"train.cuda_graph": "auto", "train.phase": phases(7), "train.ema": EMA}
    report = train(gpu, tmp_path, dataset, **settings)
    assert (report.violations, report.escaped) == (0, 0)
    replays = 0 if is_gpu_the_limit else 7 - STEPS_BEFORE_CAPTURE + CHECKS
    assert (report.captures, report.replays) == (int(not is_gpu_the_limit), replays)
    assert len(run_output.read_metrics(tmp_path)) == 7


def test_compiled_kernels_are_kept_and_replaced_if_damaged(gpu, dataset, tmp_path):
    folder = gpu.folder / "cache/tidemill/kernels"

    def train_once(name):
        report, log = train_with_log(gpu, tmp_path / name, dataset, **{"train.phase": phases(1)})
        assert report.kernels.keys() >= OWN_KERNELS, log
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}

    shutil.rmtree(folder, ignore_errors=True)
    stored = train_once("first")
    truncated, replaced, deleted, *intact = stored
    truncated.write_bytes(stored[truncated][0][:-1])
    replaced.write_bytes(stored[deleted][0])
    deleted.unlink()
    stored_again = train_once("second")
    assert {path: code for path, (code, _) in stored_again.items()} == {
        path: code for path, (code, _) in stored.items()
    }
    assert intact
    assert all(stored_again[path] == stored[path] for path in intact), "they were compiled again"


def test_step_that_does_not_fit_says_what_to_lower(gpu, dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("NULL_GPU_MEMORY_MIB", "120")
    training.link_dataset(tmp_path, dataset)
    settings = {**GPU, "train.global_batch": 100, "train.micro_batch": 100, "train.phase": phases(1)}
    command = [sys.executable, *training.train_arguments(tmp_path, settings)]
    _, ended = run_command(gpu, tmp_path, *command, "--quiet")
    assert ended.returncode == 1, ended.stderr
    message = " ".join(ended.stderr.split())
    assert "step 1 does not fit into the GPU's memory" in message
    assert "of 0.12 GiB" in message
    assert "set train.micro_batch to 1, in place of 100 samples" in message


def test_deterministic_run_uses_deterministic_operations(gpu, dataset, tmp_path):
    settings = {"train.deterministic": True, "train.phase": phases(6), "train.ema": EMA}
    report = train(gpu, tmp_path, dataset, **settings)
    assert (report.violations, report.escaped, report.replays) == (0, 0, 6 - STEPS_BEFORE_CAPTURE + CHECKS)
    # cuDNN's attention adds up in any order; the flash kernels have an order if they are asked for it.
    assert any("flash_bwd" in name for name in report.kernels), sorted(report.kernels)


def test_every_kind_of_step_has_its_cuda_graph(gpu, dataset, tmp_path):
    settings = {
        "train.phase": [*phases(12), *phases(6, global_batch=8, micro_batch=8)],
        "train.micro_batch": 6,
        "train.ema": {"decay": 0.9, "start_step": 5},
        "train.gradient_checkpointing": True,
        "train.norm_precision": "f32",
        "train.moment_precision": "bf16",
        "train.freeze": ["conv_in.*"],
        "train.min_snr_gamma": 5.0,
        "train.noise_offset": 0.1,
        "train.spike": {"factor": 100.0, "window": 2, "action": "skip"},
        "train.validation": {"every": 6, "rows": 8, "dataset": str(dataset)},
    }
    report = train(gpu, tmp_path, dataset, **settings)
    assert (report.violations, report.escaped) == (0, 0)
    # Steps 1 to 5 are not averaged, the other seven of the phase are; then come six of another
    # shape.
    assert report.captures == 3
    assert report.replays == sum(steps - STEPS_BEFORE_CAPTURE + CHECKS for steps in (5, 7, 6))
    assert len(run_output.read_metrics(tmp_path)) == 18


def test_second_gpu_runs_all_its_kernels(gpu, dataset, tmp_path, monkeypatch):
    """PyTorch does not select the device for own kernels and captures; Tidemill must."""
    monkeypatch.setenv("NULL_GPU_DEVICES", "2")
    settings = {"engine.device": "cuda:1", "train.phase": phases(6), "train.ema": EMA}
    report = train(gpu, tmp_path, dataset, **settings)
    assert (report.violations, report.escaped, report.on_first) == (0, 0, 0)
    assert report.replays == 6 - STEPS_BEFORE_CAPTURE + CHECKS
    used = {"group_norm_apply", "group_norm_x_grad", "geglu_forward", "geglu_backward", "adamw_step"}
    assert used <= report.kernels.keys()


def test_libtorch_operations_replace_kernels_that_cannot_be_loaded(gpu, dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("NULL_GPU_NO_MODULES", "1")
    settings = {"train.phase": phases(6), "train.ema": EMA}
    report, log = train_with_log(gpu, tmp_path, dataset, **settings)
    assert len(run_output.read_metrics(tmp_path)) == 6
    assert not OWN_KERNELS & report.kernels.keys()
    for what in ("GroupNorm", "ChannelBias", "LayerNorm", "GEGLU", "AdamW"):
        assert log.count(f"{what} on GPU 0: Tidemill's kernels cannot be used") == 1, log
    assert (report.violations, report.escaped, report.replays) == (0, 0, 6 - STEPS_BEFORE_CAPTURE + CHECKS)


def test_channels_last_checkpoint_of_gpu_resumes_on_cpu(gpu, dataset, tmp_path):
    settings = {"train.cuda_graph": False, "checkpoint.every": 2}
    reports = []
    for steps in (4, 6):
        output = tmp_path / str(steps)
        reports.append(train(gpu, output, dataset, **settings, **{"train.phase": phases(steps)}))
    commit = json.loads((output / "checkpoints/step-00000006/commit.json").read_text())
    order = {p["name"]: p.get("order", "row_major") for p in commit["parameters"] if len(p["shape"]) == 4}
    assert order["conv_in.weight"] == order["mid_block.resnets.0.conv1.weight"] == "channels_last"
    # Weights and gradients are not converted to another layout: fewer copies than convolutions.
    copies = [sum(n for name, n in r.kernels.items() if "direct_copy_kernel" in name) for r in reports]
    print(f"{(copies[1] - copies[0]) / 2:.0f} copies in a step, {len(order)} convolutions")
    assert (copies[1] - copies[0]) / 2 < len(order)

    resumed = {**GPU, **settings, "engine.device": "cpu", "train.phase": phases(7)}
    command = [sys.executable, *training.train_arguments(output, resumed), "--quiet", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert len(run_output.read_metrics(output)) == 7
    commit = json.loads((output / "checkpoints/step-00000007/commit.json").read_text())
    assert not any("order" in parameter for parameter in commit["parameters"])


DENOISER = """
import json, sys
import tidemill, torch
from diffusers import UNet2DConditionModel

settings, looks = json.loads(sys.argv[1]), sys.argv[2] == "looks"

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        config = UNet2DConditionModel.load_config(settings["models.path"] + "/unet")
        self.unet = UNet2DConditionModel.from_config(config)

    def forward(self, sample, timesteps, text):
        if looks:
            sample.sum().item()
        return self.unet(sample, timesteps, text).sample

tidemill.train(settings, denoiser=Own().to("cuda"))
"""


@pytest.mark.parametrize("looks", [False, True])
def test_denoiser_is_captured_unless_it_synchronizes(looks, gpu, dataset, tmp_path):
    training.link_dataset(tmp_path, dataset)
    settings = {
        **training.SETTINGS,
        **GPU,
        "output": str(tmp_path),
        "train.phase": phases(6),
        "train.ema": EMA,
    }
    script = [sys.executable, "-c", DENOISER, json.dumps(settings), "looks" if looks else ""]
    report, ended = run_command(gpu, tmp_path, *script)
    assert report.captures == 1, ended.stderr
    if not looks:
        assert ended.returncode == 0, ended.stderr
        assert (report.violations, report.escaped, report.replays) == (
            0,
            0,
            6 - STEPS_BEFORE_CAPTURE + CHECKS,
        )
        return
    assert report.violations > 0
    assert report.replays == 0
    # The module's exception is raised unchanged, with its traceback.
    assert "in forward" in ended.stderr
    assert "not permitted when stream is capturing" in ended.stderr


def test_cuda_graph_is_refused_on_cpu(dataset, tmp_path):
    training.link_dataset(tmp_path, dataset)
    with pytest.raises(tidemill.InputError, match=r"train.cuda_graph.*device is the CPU"):
        tidemill.train({**training.SETTINGS, "output": str(tmp_path), "train.cuda_graph": True})
