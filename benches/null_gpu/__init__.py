"""A GPU that computes nothing, for machines without one: what a program asks of its GPU is counted.

It takes the place of CUDA's libraries under PyTorch's own CUDA half (`null_gpu.cpp`). What comes of
it: whether all that a step computes with is on the device, whether the step can be recorded, how
many kernels it starts, how long the host takes to do so, and how much of the GPU's memory it wants.
What does not: numbers, and how fast a GPU is.
"""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
# Of libtorch, whose undefined symbols are what it calls.
CALLERS = ("libtorch_cuda.so", "libc10_cuda.so", "libcaffe2_nvrtc.so")
CALLED = re.compile(r"^(__cuda\w+|cuda[A-Z]\w*|cublas\w+|cudnn\w+|cu[A-Z]\w*|cuInit)$")


@dataclass(frozen=True)
class NullGpu:
    """The library, in a folder that it is built in."""

    folder: Path

    @cached_property
    def library(self) -> Path:
        """Built at the first use. It has the driver's name, which programs look for."""
        library = self.folder / "libcuda.so.1"
        self.folder.mkdir(parents=True, exist_ok=True)
        compile_ = ["c++", "-std=c++20", "-O1", "-w", "-fPIC", f"-I{HERE}", f"-I{_nvidia() / 'cu13/include'}"]
        ours, others = self.folder / "null_gpu.o", self.folder / "others.c"
        subprocess.run([*compile_, "-c", HERE / "null_gpu.cpp", "-o", ours], check=True)
        missing = _symbols("--undefined-only", *(_torch() / "lib" / name for name in CALLERS))
        missing = {name for name in missing if CALLED.match(name)} - _symbols("--defined-only", ours)
        others.write_text("".join(f"int {name}() {{ return 0; }}\n" for name in sorted(missing | {"cuInit"})))
        others_object = self.folder / "others.o"
        subprocess.run(["cc", "-w", "-fPIC", "-c", others, "-o", others_object], check=True)
        # Only what is CUDA's may be seen by others.
        exported = self.folder / "exported"
        exported.write_text("{ global: cu*; __cu*; local: *; };\n")
        link = [*compile_, "-shared", f"-Wl,-soname,{library.name},--version-script={exported}"]
        subprocess.run([*link, ours, others_object, "-o", library], check=True)
        return library

    def environment(self, report: Path) -> Mapping[str, str]:
        """Has a process see the GPU, and write at its end what it was asked for."""
        path = os.pathsep.join(filter(None, [str(self.library.parent), os.environ.get("LD_LIBRARY_PATH")]))
        return {"LD_PRELOAD": str(self.library), "LD_LIBRARY_PATH": path, "NULL_GPU_REPORT": str(report)}


@dataclass(frozen=True)
class Report:
    """What a process has asked the GPU for."""

    # Kernels, copies and the calls of libraries: by name, once the process has ended, and all of
    # them.
    kernels: Mapping[str, int]
    launches: int
    # Captures, what was launched in them, and what was meanwhile on other streams.
    captures: int
    captured: int
    escaped: int
    # Graphs that were started, and what they consist of.
    replays: int
    replayed: int
    # What a capture does not allow.
    violations: int
    # Times that the host waited.
    waits: int
    # Launches on the first of several devices.
    on_first: int
    peak_bytes: int
    # Since the process's start.
    seconds: float

    @classmethod
    def read(cls, path: Path) -> list["Report"]:
        """What it was at each copy to the host, and at the end."""
        return [cls(**json.loads(line)) for line in path.read_text().splitlines()]


def _symbols(which: str, *files: Path) -> set[str]:
    """The names in ELF files, without their versions."""
    said = subprocess.run(
        ["nm", "-D" if which == "--undefined-only" else "-g", which, *files], check=True, **_TEXT
    )
    return {line.split()[-1].split("@")[0] for line in said.stdout.splitlines() if len(line.split()) > 1}


_TEXT = {"stdout": subprocess.PIPE, "text": True}


def _torch() -> Path:
    return Path(find_spec("torch").submodule_search_locations[0])


def _nvidia() -> Path:
    return _torch().parent / "nvidia"
