"""Checks that train the quickstart's network on a GPU: resume, and process groups."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tidemill.run_file import to_command_line

from benches import gpu, report
from benches.runner import ROOT, BenchError

RESUME_STEPS, RESUME_KILLS, RANK_STEPS = 60, 3, 20
# By how much a loss may differ: sums in another order.
LARGEST_DIFFERENCE = 1e-2


def tidemill(arguments: list[str], limit_s: float, environment: Mapping[str, str] | None = None) -> dict:
    """Runs a verb; returns the last line that it prints."""
    command = [*gpu.TIDEMILL, *arguments, "--json", "--quiet"]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=limit_s, env={**os.environ, **(environment or {})}
    )
    if ended.returncode != 0:
        raise BenchError(gpu.summarize_error(ended.stderr))
    return json.loads(ended.stdout.splitlines()[-1])


def quickstart(settings: Mapping[str, object]) -> list[str]:
    """The quickstart with these settings, as arguments of the command line."""
    return to_command_line(
        ROOT / "examples/quickstart.toml", **{"models.path": str(ROOT / "assets"), **settings}
    )


def make_dataset(folder: Path, device: str) -> Path:
    """Latents of 64 x 64 pixels, made by the quickstart's encoders."""

    def preprocess(folder: Path) -> None:
        gpu.run_verb("synth", str(folder / "pairs"), "--rows", "1000", "--files", "2")
        settings = {
            "source.uri": f"{folder}/pairs/*.parquet",
            "output": str(folder),
            "prepare.resolutions": [64],
        }
        gpu.run_verb("preprocess", *quickstart({**settings, "engine.device": device}))

    gpu.make_once(folder / "training-data", preprocess)
    return folder / "training-data" / "dataset"


def new_output(folder: Path, dataset: Path) -> Path:
    """An empty output with a dataset."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "dataset").symlink_to(dataset)
    return folder


def check_resume(folder: Path, device: str, limit_s: float) -> str:
    """Whether a run with `train.deterministic` that is killed equals one that is not, bit for bit."""
    data = make_dataset(folder, device)
    seed = random.randrange(2**32)
    rng, weights = random.Random(seed), []
    for kills in (0, RESUME_KILLS):
        output = new_output(folder / f"resume-{kills}", data)
        settings = {
            "output": str(output),
            "engine.device": device,
            "train.deterministic": True,
            "train.precision": "bf16",
            "train.warmup_steps": 5,
            "train.log_every": 1,
            "train.phase": [{"resolution": 64, "steps": RESUME_STEPS}],
            "train.validation.every": RESUME_STEPS,
            "train.preview.every": RESUME_STEPS,
            "checkpoint.every": 7,
        }
        train = ["train", *quickstart(settings)]
        for step in sorted(rng.sample(range(8, RESUME_STEPS - 8), kills)):
            train_until_killed(train, output / "metrics.jsonl", step, limit_s)
        tidemill(train, limit_s)
        exported = output / "exported"
        gpu.run_verb("export", *quickstart(settings), "--to", str(exported))
        weights.append((exported / "unet" / "diffusion_pytorch_model.safetensors").read_bytes())
    if weights[0] != weights[1]:
        raise BenchError(f"the weights differ after {RESUME_KILLS} kills, seed {seed}")
    return f"{RESUME_KILLS} kills in {RESUME_STEPS} steps, seed {seed}: the weights are equal bit for bit."


def train_until_killed(train: list[str], metrics: Path, step: int, limit_s: float) -> None:
    """Kills the training process when it has logged a step."""
    process = subprocess.Popen([*gpu.TIDEMILL, *train, "--quiet"], start_new_session=True)
    deadline = time.monotonic() + limit_s
    try:
        while process.poll() is None and time.monotonic() < deadline:
            lines = metrics.read_text().splitlines() if metrics.exists() else []
            if sum(line.endswith("}") for line in lines) >= step:
                break
            time.sleep(0.01)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# A rank with a process group of this backend. Its GPU is that of the other ranks.
RANK = """
import sys
import tidemill
import torch
import torch.distributed as dist
torch.cuda.set_device(sys.argv[1])
dist.init_process_group(sys.argv[2])
sys.exit(tidemill.main(sys.argv[3:]))
"""
NCCL = "cpu:gloo,cuda:nccl"
# Backend and number of ranks, and settings.
GROUPS: dict[str, tuple[str, int, dict[str, object]]] = {
    "NCCL, one rank": (NCCL, 1, {}),
    "NCCL, one rank, recorded": (NCCL, 1, {"train.cuda_graph": True}),
    "Gloo, two ranks on one GPU": ("gloo", 2, {}),
}


def check_ranks(folder: Path, device: str, limit_s: float) -> str:
    """Whether training is the same with a process group; how far losses are apart."""
    data, deadline = make_dataset(folder, device), time.monotonic() + limit_s
    losses, rows = {}, []
    for name, (backend, ranks, more) in {"no group": ("", 1, {}), **GROUPS}.items():
        output = new_output(folder / "ranks", data)
        settings = {
            "output": str(output),
            "engine.device": device,
            "train.precision": "f32",
            "train.cuda_graph": False,
            "train.global_batch": 32,
            "train.micro_batch": 16,
            "train.warmup_steps": 5,
            "train.log_every": 1,
            "train.phase": [{"resolution": 64, "steps": RANK_STEPS}],
            "train.preview.every": RANK_STEPS,
            **more,
        }
        train_ranks(backend, device, ranks, ["train", *quickstart(settings), "--quiet"], deadline)
        lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
        losses[name] = [line["loss"] for line in lines if "loss" in line]
        pairs = list(zip(losses["no group"], losses[name], strict=True))
        if not all(isinstance(loss, float) and loss > 0 for pair in pairs for loss in pair):
            raise BenchError(f"{name}: losses are {losses[name]}")
        difference = max(abs(theirs / ours - 1) for ours, theirs in pairs)
        if difference > LARGEST_DIFFERENCE:
            raise BenchError(f"{name}: a loss differs by {difference:.1e}")
        rows.append([name, f"{losses[name][-1]:.4f}", f"{difference:.1e}"])
    return report.table(["process group", "last loss", "largest difference"], rows)


def train_ranks(backend: str, device: str, ranks: int, train: list[str], deadline: float) -> None:
    """Trains to the end; without a backend, without a process group."""
    command = [sys.executable, "-c", RANK, device, backend, *train] if backend else [*gpu.TIDEMILL, *train]
    world = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "LOCAL_RANK": 0}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": find_free_port()} if backend else {}
    environments = [
        {**os.environ, **{k: str(v) for k, v in (world | {"RANK": i}).items()}} for i in range(ranks)
    ]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=environment, **pipes) for environment in environments]
    try:
        for process in processes:
            _, log = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
            if process.returncode != 0:
                raise BenchError(gpu.summarize_error(log))
    finally:
        for process in processes:
            process.kill()
            process.wait()


def find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
