"""Loads the libtorch that the native module links against, without PyTorch's Python part.

The Python part takes most of a second to import, and Ray starts many processes that never need it.
With a GPU, PyTorch is imported anyway: it finds and loads CUDA's libraries in the right order.
"""

import ctypes
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

# The PyTorch that the native module was built with. Each minor version changes the C++ interface.
BUILT_WITH = "2.11.0"


def check_torch_version(installed: str) -> None:
    """Refuses a PyTorch of another minor version: the native module would miss symbols, or crash."""
    if installed.split(".")[:2] != BUILT_WITH.split(".")[:2]:
        raise ImportError(
            f"this tidemill was built with torch {BUILT_WITH}, and torch {installed} is installed: "
            f"pip install torch=={BUILT_WITH}"
        )


def _check_installed_torch() -> None:
    # A PyTorch that was not installed as a package has no version to check.
    with suppress(PackageNotFoundError):
        check_torch_version(version("torch"))


def has_gpu() -> bool:
    """Whether NVIDIA's driver is installed."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _load_libtorch() -> None:
    spec = find_spec("torch")
    if spec is not None and spec.origin is not None and not has_gpu():
        try:
            ctypes.CDLL(str(Path(spec.origin).parent / "lib" / "libtorch_cpu.so"))
            return
        except OSError:
            # The library lies in another folder, or needs libraries that only PyTorch itself finds.
            pass
    import torch  # noqa: F401


_check_installed_torch()
if "torch" not in sys.modules:
    _load_libtorch()
