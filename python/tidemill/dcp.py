"""Writes the state of a checkpoint for `torch.distributed.checkpoint`.

`call_script.py` runs this file. It imports nothing of the package.
"""

import warnings
from pathlib import Path


def convert(buffers: str, to: str) -> str:
    """Writes the folder `to` from a folder with a safetensors file for each buffer.

    Its keys are those of `{"model": module.state_dict(), "optimizer": {"state": ...}}`, and `ema` for
    averaged weights.
    """
    from safetensors.torch import load_file
    from torch.distributed import checkpoint

    found = {path.stem: load_file(path) for path in Path(buffers).glob("*.safetensors")}
    moments = {name: found.pop(name) for name in ("exp_avg", "exp_avg_sq", "step")}
    names = moments["step"]
    state = {name: {key: values[name] for key, values in moments.items()} for name in names}
    with warnings.catch_warnings():
        # That there is no process group.
        warnings.simplefilter("ignore")
        checkpoint.save({**found, "optimizer": {"state": state}}, checkpoint_id=to, no_dist=True)
    return to
