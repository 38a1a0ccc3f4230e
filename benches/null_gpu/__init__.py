"""A fake GPU that computes nothing, for machines without one. It counts what a program asks of it.

It replaces the libraries of CUDA and NCCL under PyTorch's own CUDA code (`fake_device.h` and the `.cpp`
files).
It shows whether everything that a step computes with is on the device, whether the step can be
captured, how many kernels it launches, how long the host takes for that, and how much GPU memory it
needs. It shows neither numbers nor the speed of a GPU.
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
# Libraries of libtorch. Their undefined symbols are the functions of CUDA and NCCL that they call.
CALLERS = ("libtorch_cuda.so", "libc10_cuda.so", "libcaffe2_nvrtc.so")
CALLED = re.compile(r"^(__cuda\w+|cuda[A-Z]\w*|cublas\w+|cudnn\w+|nccl\w+|cu[A-Z]\w*|cuInit)$")


@dataclass(frozen=True)
class NullGpu:
    """The fake GPU, a library in the folder in which it is built."""

    folder: Path

    @cached_property
    def library(self) -> Path:
        """Builds the library on first use. It has the driver's name, which programs look for."""
        library = self.folder / "libcuda.so.1"
        self.folder.mkdir(parents=True, exist_ok=True)
        compile_ = ["c++", "-std=c++20", "-O1", "-w", "-fPIC", f"-I{HERE}", f"-I{_nvidia() / 'cu13/include'}"]
        sources = sorted(HERE.glob("*.cpp"))
        ours = [self.folder / f"{source.stem}.o" for source in sources]
        for source, compiled in zip(sources, ours, strict=True):
            subprocess.run([*compile_, "-c", source, "-o", compiled], check=True)
        others = self.folder / "others.c"
        missing = _symbols("--undefined-only", *(_torch() / "lib" / name for name in CALLERS))
        missing = {name for name in missing if CALLED.match(name)} - _symbols("--defined-only", *ours)
        others.write_text("".join(f"int {name}() {{ return 0; }}\n" for name in sorted(missing | {"cuInit"})))
        others_object = self.folder / "others.o"
        subprocess.run(["cc", "-w", "-fPIC", "-c", others, "-o", others_object], check=True)
        # Other libraries must see only the functions of CUDA and NCCL.
        exported = self.folder / "exported"
        exported.write_text("{ global: cu*; __cu*; nccl*; local: *; };\n")
        link = [*compile_, "-shared", f"-Wl,-soname,{library.name},--version-script={exported}"]
        subprocess.run([*link, *ours, others_object, "-o", library], check=True)
        return library

    def environment(self, report: Path) -> Mapping[str, str]:
        """Environment variables with which a process sees the fake GPU and writes a report."""
        path = os.pathsep.join(filter(None, [str(self.library.parent), os.environ.get("LD_LIBRARY_PATH")]))
        return {
            "LD_PRELOAD": str(self.library),
            "LD_LIBRARY_PATH": path,
            "NULL_GPU_REPORT": str(report),
            # Compiled kernels are kept here.
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }


@dataclass(frozen=True)
class Report:
    """Counts of what a process has asked of the fake GPU."""

    # Kernels, copies and library calls: by name at the end of the process, and in total.
    kernels: Mapping[str, int]
    launches: int
    # Graph captures, launches in them, and launches on other streams meanwhile.
    captures: int
    captured: int
    escaped: int
    # Graph launches, and the kernels that these graphs contain.
    replays: int
    replayed: int
    # Calls that are not permitted during a capture.
    violations: int
    # How often the host waited for the device.
    waits: int
    # Launches on the first device.
    on_first: int
    peak_bytes: int
    # Seconds since the start of the process.
    seconds: float

    @classmethod
    def read(cls, path: Path) -> list["Report"]:
        """The reports at each copy to the host, and at the end of the process."""
        return [cls(**json.loads(line)) for line in path.read_text().splitlines()]


def _symbols(which: str, *files: Path) -> set[str]:
    """The names in ELF files, without their versions."""
    listing = subprocess.run(
        ["nm", "-D" if which == "--undefined-only" else "-g", which, *files], check=True, **_TEXT
    )
    return {line.split()[-1].split("@")[0] for line in listing.stdout.splitlines() if len(line.split()) > 1}


_TEXT = {"stdout": subprocess.PIPE, "text": True}


def _torch() -> Path:
    return Path(find_spec("torch").submodule_search_locations[0])


def _nvidia() -> Path:
    return _torch().parent / "nvidia"
