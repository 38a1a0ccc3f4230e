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

from tidemill.ray.data import read, write_latents
from tidemill.ray.stages import Encode, Prepare, encode
from tidemill.ray.train import Trainer
from tidemill.run_file import resolve

__all__ = ["Encode", "Prepare", "Trainer", "encode", "read", "resolve", "write_latents"]
