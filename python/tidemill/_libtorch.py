"""Loads the libtorch that the native module links against, without PyTorch's Python part.

That takes most of a second, and Ray starts many processes that never need it. Where there is a GPU, PyTorch
is imported all the same: it loads CUDA's libraries from wherever they are, and in time.
"""

import ctypes
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

# Against whose C++ interface, which each minor version changes, the native module was built.
BUILT_WITH = "2.11.0"


def check(installed: str) -> None:
    """Refuses another PyTorch, with which the native module has symbols missing, or worse."""
    if installed.split(".")[:2] != BUILT_WITH.split(".")[:2]:
        raise ImportError(
            f"this tidemill was built with torch {BUILT_WITH}, and torch {installed} is installed: "
            f"pip install torch=={BUILT_WITH}"
        )


def _check_installed() -> None:
    # A PyTorch of no package does not say which it is.
    with suppress(PackageNotFoundError):
        check(version("torch"))


def has_gpu() -> bool:
    """Whether there is a driver of NVIDIA's."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _load() -> None:
    spec = find_spec("torch")
    if spec is not None and spec.origin is not None and not has_gpu():
        try:
            ctypes.CDLL(str(Path(spec.origin).parent / "lib" / "libtorch_cpu.so"))
            return
        except OSError:
            # It lies elsewhere, or needs libraries that PyTorch finds by itself.
            pass
    import torch  # noqa: F401


_check_installed()
if "torch" not in sys.modules:
    _load()
