"""Writes the state of a checkpoint for `torch.distributed.checkpoint`.

Tidemill runs this file, and does not import it. It imports nothing of the package.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def read_buffer(path: Path) -> dict[str, "torch.Tensor"]:
    """The tensors of a safetensors file with nothing but f32, mapped into memory."""
    import torch

    size = int.from_bytes(path.open("rb").read(8), "little")
    with path.open("rb") as file:
        file.seek(8)
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    values = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)
    tensors = {}
    for name, entry in header.items():
        start, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[name] = values[start:end].view(torch.float32).reshape(entry["shape"])
    return tensors


def convert(buffers: str, to: str) -> None:
    """Writes the folder `to` from a folder with a file for each buffer.

    Its keys are those of `{"model": module.state_dict(), "optimizer": {"state": ...}}`, and `ema` for
    averaged weights.
    """
    from torch.distributed import checkpoint

    found = {path.stem: read_buffer(path) for path in Path(buffers).glob("*.safetensors")}
    moments = {name: found.pop(name) for name in ("exp_avg", "exp_avg_sq", "step")}
    names = moments["step"]
    state: dict[str, Any] = {
        **found,
        "optimizer": {
            "state": {name: {key: values[name] for key, values in moments.items()} for name in names}
        },
    }
    with warnings.catch_warnings():
        # That there is no process group.
        warnings.simplefilter("ignore")
        checkpoint.save(state, checkpoint_id=to, no_dist=True)


def main(buffers: str, to: str) -> int:
    """Converts; prints the result or the error as JSON."""
    try:
        convert(buffers, to)
    except Exception as error:
        print(json.dumps({"error": f"{to}: {error}"}))
        return 1
    print(json.dumps({"done": to}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
