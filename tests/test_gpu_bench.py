"""The benches for a GPU, on a fake one or without any."""

import json
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
from helpers import training
from helpers.gpu import GPU, phases, run_command

from benches import gpu as gpu_bench
from benches import gpu_kernels, gpu_quality
from benches.runner import BenchError

ROOT = Path(__file__).resolve().parent.parent


def test_bench_finds_the_largest_micro_batch(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("NULL_GPU_MEMORY_MIB", "400")
    arguments = training.train_arguments(tmp_path, {**GPU, "train.phase": phases(1)})
    arguments.insert(arguments.index("train"), "bench")
    _, ended = run_command(gpu, tmp_path, sys.executable, *arguments, "--fit", "--json", "--quiet")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["total_memory_mib"] == 400
    assert found["largest_micro_batch"]["64"]["micro_batch"] > 1, found


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


# Some twenty trainings and two preprocessings.
@pytest.mark.slow
def test_gpu_checks_run(gpu, tmp_path):
    command = [sys.executable, "-m", "benches.gpu_checks", "--quick", "--folder", str(tmp_path / "checks")]
    # A fake GPU has no trace of kernels, and computes no encoders for plain PyTorch to pin memory for.
    _, ended = run_command(
        gpu, tmp_path, *command, "--only", "first step", "largest batch", "ranks", cwd=ROOT
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    checks = (tmp_path / "checks/checks.md").read_text()
    assert "| kernels kept |" in checks
    assert "the largest in" in checks
    assert "| Gloo, two ranks on one GPU | 1.0000 | 0.0e+00 |" in checks


def test_quality_may_differ_from_the_cpu_by_what_seeds_explain():
    def runs(loss, score):
        return [gpu_quality.Quality(loss + error, score) for error in (-0.01, 0.0, 0.01)]

    cpu = {"CPU": runs(0.3, 1.0)}
    table = gpu_quality.describe(cpu | {"GPU": runs(0.31, 1.0)})
    assert "| GPU | 3 | 0.3100 ± 0.0100 | 1.0000 ± 0.0000 |" in table
    for name, other in [("validation_loss", runs(0.35, 1.0)), ("score", runs(0.3, 0.9))]:
        with pytest.raises(BenchError, match=f"further from the CPU's than seeds explain: {name} of GPU\n"):
            gpu_quality.describe(cpu | {"GPU": other})


def test_kernels_of_a_trace_are_added_up_by_kind():
    names = {
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64": "attention",
        "sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc": "convolutions",
        "nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT": "linear layers",
        "group_norm_x_grad": "group norms",
        "add_layer_norm_backward": "layer norms",
        "geglu_backward_with_bias": "GEGLU",
        "adamw_step": "AdamW",
        "add_channel_bias": "biases of convolutions",
        "Memcpy DtoH (Device -> Pinned)": "other",
    }
    events = [{"ph": "X", "cat": "kernel", "name": name, "dur": 3000} for name in [*names, "adamw_step"]]
    events.append({"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", "dur": 9000})
    expected = dict.fromkeys(names.values(), 1.5) | {"AdamW": 3.0}
    assert gpu_kernels.times_by_kind(events, 2) == expected


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
        size = {"model": "sd2", "pixels": [pixels], "batch": [4], "steps": steps, "channels": 64, "text": 64}
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
