"""The kernels of a training step on a GPU: time by kind, and the share of what the GPU can do.

Times come from a trace of `train.profile`, work from the U-Net's shapes, limits from a large product and a
large copy on the same GPU.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import UNet2DConditionModel
from diffusers.models.activations import GEGLU
from torch.utils.flop_counter import FlopCounterMode

from benches import report

# Patterns of kernel names. The first that matches is the kernel's kind.
KINDS = {
    "attention": r"sdpa|flash|fmha|compute_dot_do_o|convert_dq|softmax",
    "group norms": r"^group_norm",
    "layer norms": r"layer_norm",
    "GEGLU": r"^geglu",
    "biases of convolutions": r"^add_channel_bias",
    "AdamW": r"^adamw",
    "convolutions": r"fprop|dgrad|wgrad|conv|nchwToNhwc|nhwcToNchw",
    "linear layers": r"nvjet|gemm|cutlass|cublas|splitK",
    "other": r"",
}
# Operations whose FLOPs PyTorch counts, by the kind of their kernels.
COUNTED = {
    "attention": r"bmm|attention",
    "convolutions": r"convolution",
    "linear layers": r"\b(mm|addmm)\b",
}
# How often a tensor of the size of a layer's output is read or written at least, forward and backward.
PASSES = {"group norms": 5, "layer norms": 8, "GEGLU": 8}
# Bytes of AdamW for a parameter: gradient and new weight in bf16; master weight and both moments in f32,
# read and written.
ADAMW_BYTES = 2 + 2 + 3 * (4 + 4)
BF16 = 2


@dataclass(frozen=True)
class Work:
    """What a step computes at least, by kind of kernel."""

    flops: Mapping[str, float]
    bytes: Mapping[str, float]


@dataclass(frozen=True)
class Limits:
    """What a GPU reaches."""

    # Of a bf16 product of 8192 x 8192 matrices.
    flops_per_s: float
    # Read and written by a copy of 4 GiB.
    bytes_per_s: float


def classify(kernel: str) -> str:
    return next(kind for kind, pattern in KINDS.items() if re.search(pattern, kernel))


def times_by_kind(events: Iterable[Mapping], steps: int) -> dict[str, float]:
    """Milliseconds per step of the kernels in a trace, by kind."""
    times: dict[str, float] = defaultdict(float)
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            times[classify(event["name"])] += event["dur"] / 1e3 / steps
    return dict(times)


def count_work(config: Mapping, batch: int, size: int) -> Work:
    """The work of a step with latents of this size, without memory and without computing anything."""
    with torch.device("meta"):
        unet = UNet2DConditionModel.from_config(config).to(torch.bfloat16)
        sample = torch.empty(batch, config["in_channels"], size, size, dtype=torch.bfloat16)
        text = torch.empty(batch, 77, config["cross_attention_dim"], dtype=torch.bfloat16)
        timesteps = torch.zeros(batch)
    elements: dict[str, float] = defaultdict(float)

    def add_elements(module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> None:
        kinds = {torch.nn.GroupNorm: "group norms", torch.nn.LayerNorm: "layer norms", GEGLU: "GEGLU"}
        elements[kinds[type(module)]] += output.numel()

    for module in unet.modules():
        if isinstance(module, torch.nn.GroupNorm | torch.nn.LayerNorm | GEGLU):
            module.register_forward_hook(add_elements)
    with FlopCounterMode(display=False) as counter:
        unet(sample, timesteps, text).sample.sum().backward()
    flops: dict[str, float] = defaultdict(float)
    for operation, count in counter.get_flop_counts()["Global"].items():
        flops[next(kind for kind, pattern in COUNTED.items() if re.search(pattern, str(operation)))] += count
    moved = {kind: BF16 * PASSES[kind] * count for kind, count in elements.items()}
    moved["AdamW"] = ADAMW_BYTES * sum(parameter.numel() for parameter in unet.parameters())
    return Work(dict(flops), moved)


def measure_limits(device: str) -> Limits:
    """What this GPU reaches, the best of a few tries."""

    def seconds(work: object) -> float:
        found = []
        for _ in range(10):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end) / 1e3)
        return min(found)

    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device=device) for _ in range(2))
    source, target = (torch.empty(4 << 30, dtype=torch.uint8, device=device) for _ in range(2))
    return Limits(2 * 8192**3 / seconds(lambda: a @ b), 2 * (4 << 30) / seconds(lambda: target.copy_(source)))


def table(times: Mapping[str, float], work: Work, limits: Limits) -> str:
    """A row for each kind of kernel, the longest first."""
    rows = []
    for kind, milliseconds in sorted(times.items(), key=lambda time: -time[1]):
        done, share = "", ""
        if kind in work.flops:
            rate = work.flops[kind] / milliseconds * 1e3
            done, share = f"{rate / 1e12:.0f} TFLOP/s", f"{rate / limits.flops_per_s:.0%}"
        elif kind in work.bytes:
            rate = work.bytes[kind] / milliseconds * 1e3
            done, share = f"{rate / 1e12:.2f} TB/s", f"{rate / limits.bytes_per_s:.0%}"
        rows.append([kind, f"{milliseconds:.1f}", done, share])
    rows.append(["all", f"{sum(times.values()):.1f}", "", ""])
    return report.table(["kernels", "ms a step", "reached", "of the limit"], rows)


def read_events(trace: Path) -> list[Mapping]:
    return json.loads(trace.read_text())["traceEvents"]
