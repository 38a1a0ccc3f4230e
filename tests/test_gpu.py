"""Training on a fake GPU that computes nothing, but counts what is asked of it."""

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
import tidemill
from helpers import run_output, training

from benches import gpu as gpu_bench
from benches.null_gpu import NullGpu, Report
from benches.runner import BenchError

ROOT = Path(__file__).resolve().parent.parent
# Steps of each kind before one is captured.
STEPS_BEFORE_CAPTURE = 3
GPU = {
    "engine.device": "cuda:0",
    "train.precision": "bf16",
    "train.global_batch": 10,
    "train.micro_batch": 10,
    "train.cuda_graph": True,
    # Every result is 1 here, and some steps are skipped.
    "train.not_finite": "skip",
    "checkpoint.every": 1000,
}
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
# Averaging from the first step on.
EMA = {"decay": 0.9, "start_step": 0}


@pytest.fixture(scope="session")
def gpu(tmp_path_factory):
    return NullGpu(tmp_path_factory.mktemp("null-gpu"))


def run_command(gpu, folder, *command, **options):
    """Runs a command on the fake GPU; returns the report of the GPU and the completed process."""
    report = folder / "report.json"
    environment = {**os.environ, **gpu.environment(report)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, **options)
    return (Report.read(report)[-1] if report.exists() else None), ended


def train(gpu, output, dataset, **settings):
    return train_with_log(gpu, output, dataset, **settings)[0]


def train_with_log(gpu, output, dataset, **settings):
    """The report of the GPU, and the log."""
    training.link_dataset(output, dataset)
    command = [sys.executable, *training.train_arguments(output, {**GPU, **settings}), "--quiet", "--json"]
    report, ended = run_command(gpu, output, *command)
    assert ended.returncode == 0, ended.stderr
    return report, ended.stderr


def phases(*steps, **more):
    return [{"resolution": 64, "steps": count, **more} for count in steps]


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
    assert (recorded.captures, recorded.replays) == (1, 8 - STEPS_BEFORE_CAPTURE)
    # cuDNN computes attention and convolutions: there is no separate softmax.
    assert OWN_KERNELS | {"cudnnBackendExecute"} <= recorded.kernels.keys()
    assert not any("softmax" in name.lower() for name in recorded.kernels)
    # Outside of a replay only inputs are copied to the device, and results to the host.
    assert recorded.replayed == recorded.captured * recorded.replays
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
    assert report.replays == sum(steps - STEPS_BEFORE_CAPTURE for steps in (5, 7, 6))
    assert len(run_output.read_metrics(tmp_path)) == 18


def test_second_gpu_runs_all_its_kernels(gpu, dataset, tmp_path, monkeypatch):
    """PyTorch does not select the device for own kernels and captures; Tidemill must."""
    monkeypatch.setenv("NULL_GPU_DEVICES", "2")
    settings = {"engine.device": "cuda:1", "train.phase": phases(6), "train.ema": EMA}
    report = train(gpu, tmp_path, dataset, **settings)
    assert (report.violations, report.escaped, report.on_first) == (0, 0, 0)
    assert report.replays == 6 - STEPS_BEFORE_CAPTURE
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
    assert (report.violations, report.escaped, report.replays) == (0, 0, 6 - STEPS_BEFORE_CAPTURE)


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
        assert (report.violations, report.escaped, report.replays) == (0, 0, 6 - STEPS_BEFORE_CAPTURE)
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


# Three trainings of a hundred steps.
@pytest.mark.slow
def test_gpu_bench_runs(gpu, tmp_path):
    bench = tmp_path / "bench"
    size = ["--channels", "64", "--text", "64", "--pixels", "64", "--batch", "4", "--steps", "100"]
    command = [sys.executable, "-m", "benches.gpu", "--force", "--folder", str(bench), *size]
    # The second call reuses the data, and adds to the results of the first one.
    calls = [["Tidemill, recorded", "diffusers, eager, channels-last"], ["Tidemill"]]
    made = set()
    for sides in calls:
        _, ended = run_command(gpu, tmp_path, *command, "--sides", *sides, cwd=ROOT)
        assert ended.returncode == 0, ended.stderr
        made.add(tuple((bench / name).stat().st_ino for name in ("model", "pairs-64", "data-64")))
    table = (bench / "gpu.md").read_text()
    assert all(f"| {side} |" in table for sides in calls for side in sides), table
    assert len(made) == 1


# A side that writes a line for each step, and a side that fails.
STEPS = "import sys, time; [print(n, file=open(sys.argv[1], 'a')) or time.sleep(0.05) for n in range(99)]"
BROKEN = "raise MemoryError('8 GiB | too few')"


def test_gpu_bench_keeps_earlier_results(tmp_path, monkeypatch, capsys):
    def bench(gone_s=0, steps=8, pixels=512, **sides):
        def command(script):
            return lambda setting: (
                [sys.executable, "-c", script, str(log)],
                gpu_bench.empty_output(setting) / "log",
            )

        log = tmp_path / "run" / "log"
        monkeypatch.setattr(gpu_bench, "SIDES", {name: command(script) for name, script in sides.items()})
        size = {"pixels": [pixels], "batch": [4], "steps": steps, "channels": 64, "text": 64}
        limits = {"limit_s": 60, "started": time.time() - gone_s, "side_limit_s": 5}
        gpu_bench.bench(Namespace(folder=tmp_path, device="cpu", sides=list(sides), **size, **limits))

    def rows():
        (found,) = json.loads((tmp_path / "gpu.json").read_text())
        assert all(f"| {one['side']} |" in (tmp_path / "gpu.md").read_text() for one in found["sides"])
        return {(one["pixels"], one["side"]): one.get("failed") for one in found["sides"]}

    # A side that fails or hangs does not end the others.
    with pytest.raises(BenchError, match="failed: b at 512 pixels; c at 512 pixels"):
        bench(b=BROKEN, c="import time; time.sleep(60)", a=STEPS)
    reasons = {"b": "MemoryError: 8 GiB / too few", "c": "c has not taken 8 steps within 5 s", "a": None}
    assert rows() == {(512, side): reason for side, reason in reasons.items()}
    # A new measurement replaces its row, and the others stay.
    bench(b=STEPS)
    bench(pixels=256, a=STEPS)
    # Time before the start, such as for installing, counts.
    bench(gone_s=61, d=STEPS)
    assert "left out, 60 s are over: d at 512 pixels" in capsys.readouterr().out
    assert rows() == {(512, "b"): None, (512, "c"): reasons["c"], (512, "a"): None, (256, "a"): None}
    # With other settings all earlier results are dropped.
    bench(steps=9, a=STEPS)
    assert rows() == {(512, "a"): None}


def test_gpu_bench_measures_most_important_sides_first(tmp_path):
    sizes = {"pixels": [512, 256], "batch": [32, 128], "steps": 30}
    args = Namespace(folder=tmp_path, device="cpu", sides=list(gpu_bench.SIDES)[:5], **sizes)
    eager = [
        "Tidemill, recorded",
        "Tidemill",
        "diffusers, eager, channels-last",
        "diffusers, eager",
    ]
    expected = [(pixels, side) for pixels in (512, 256) for side in eager]
    expected += [(pixels, "diffusers, torch.compile") for pixels in (512, 256)]
    assert [(setting.pixels, side) for setting, side in gpu_bench.list_cases(args)] == expected
