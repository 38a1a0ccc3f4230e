"""Time of training steps by kind of operation, from traces of PyTorch's profiler."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, median_low

# Patterns of operation names. The first that matches is the operation's kind.
KINDS = {
    "attention": r"attention|softmax|\b(bmm|baddbmm)\b",
    "convolution": r"convolution",
    "matrix products": r"\b(mm|addmm|linear|mkldnn_linear|_linear_pointwise|matmul)\b",
    "norms": r"group_norm|layer_norm",
    "SiLU and GELU": r"silu|gelu|geglu",
    "concatenation": r"\bcat\b",
    "casts, copies, zeros": r"copy_|_to_copy|clone|fill_|zero_|contiguous|zeros|index_put",
    "optimizer": r"adamw|foreach|lerp|linalg_vector_norm|norm\b|clip_grad",
    "sums and products": r"\b(add|add_|mul|mul_|sub|sum|div|square|pow|mean|neg|rsub|mse_loss)",
}


@dataclass
class Trace:
    """Milliseconds per step of the operations in a trace."""

    by_kind: Mapping[str, float]
    by_name: Mapping[str, float]
    calls: Mapping[str, int]
    # The time from the start of the first operation to the end of the last one.
    wall: float


@dataclass
class _OpenOperation:
    name: str
    end: float
    duration: float
    # The part of the duration in nested operations.
    inner: float = 0.0


def read_trace(path: Path, steps: int) -> Trace:
    """Reads a trace of `steps` steps; returns the operations' self times per step."""
    events = [e for e in json.loads(path.read_text())["traceEvents"] if is_operation(e)]
    by_name: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for thread in {event["tid"] for event in events}:
        for name, own in self_times(event for event in events if event["tid"] == thread):
            by_name[name] += own / 1e3 / steps
            calls[name] += 1
    by_kind: dict[str, float] = defaultdict(float)
    for name, milliseconds in by_name.items():
        by_kind[classify(name)] += milliseconds
    wall = max(e["ts"] + e["dur"] for e in events) - min(e["ts"] for e in events)
    wall = wall / 1e3 / steps
    by_kind["outside of operations"] = wall - sum(by_kind.values())
    return Trace(by_kind, by_name, {name: n // steps for name, n in calls.items()}, wall)


def medians(traces: Sequence[Trace]) -> Trace:
    """The median of each figure by itself, so kinds need not add up to the total.

    An operation that a trace lacks took no time there.
    """
    return Trace(
        by_kind=_reduce_by_name([trace.by_kind for trace in traces], median),
        by_name=_reduce_by_name([trace.by_name for trace in traces], median),
        calls=_reduce_by_name([trace.calls for trace in traces], median_low),
        wall=median(trace.wall for trace in traces),
    )


def _reduce_by_name(figures: Sequence[Mapping], reduce: Callable) -> dict:
    names = {name for some in figures for name in some}
    return {name: reduce([some.get(name, 0) for some in figures]) for name in names}


def is_operation(event: Mapping) -> bool:
    return event.get("ph") == "X" and event.get("cat") == "cpu_op"


def self_times(events: Iterable[Mapping]) -> Iterable[tuple[str, float]]:
    """Names and self times in microseconds of one thread's operations, without nested operations."""
    stack: list[_OpenOperation] = []

    def close() -> tuple[str, float]:
        done = stack.pop()
        if stack:
            stack[-1].inner += done.duration
        return done.name, done.duration - done.inner

    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while stack and stack[-1].end <= event["ts"]:
            yield close()
        stack.append(_OpenOperation(event["name"], event["ts"] + event["dur"], event["dur"]))
    while stack:
        yield close()


def classify(name: str) -> str:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "other operations")
