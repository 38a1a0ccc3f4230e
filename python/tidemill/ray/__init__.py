"""Tidemill's stages for Ray Data, and its trainer for Ray Train.

    run = tidemill.ray.resolve("run.toml")
    ds = tidemill.ray.read(run)
    ds = ds.map_batches(tidemill.ray.Prepare(run), batch_size=None, batch_format="pyarrow")
    ds = tidemill.ray.encode(ds, run, num_gpus=1, concurrency=(1, 40), accelerator_type="A10G")
    tidemill.ray.write_latents(ds, run)

Each stage also works on its own in a pipeline of yours: `Prepare` takes any table with the image and
caption columns that the run file names, `encode` (or the class `Encode` in `map_batches`) what `Prepare`
gave, `write_latents` what `encode` gave.
"""

from typing import TYPE_CHECKING, Any

from tidemill.ray.data import read, write_latents
from tidemill.ray.stages import Encode, Prepare, encode
from tidemill.run_file import resolve

if TYPE_CHECKING:
    from tidemill.ray.train import Trainer

__all__ = ["Encode", "Prepare", "Trainer", "encode", "read", "resolve", "write_latents"]


def __getattr__(name: str) -> Any:
    """Ray Train takes seconds to import, in each worker of Ray Data, too."""
    if name == "Trainer":
        from tidemill.ray.train import Trainer

        return Trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
