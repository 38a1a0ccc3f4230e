"""Tidemill's stages for Ray Data, and its trainer for Ray Train.

    run = tidemill.ray.resolve("run.toml")
    ds = tidemill.ray.read(run)
    ds = ds.map_batches(tidemill.ray.Prepare(run), batch_size=None, batch_format="pyarrow")
    ds = tidemill.ray.encode(ds, run, num_gpus=1, concurrency=(1, 40), accelerator_type="A10G")
    tidemill.ray.write_latents(ds, run)

Each stage also works by itself in your own pipeline: `Prepare` takes any table that has the image
and caption columns of the run file, `encode` (or the class `Encode` in `map_batches`) takes the
output of `Prepare`, and `write_latents` takes the output of `encode`.

Folders: `preprocess` (Ray Data: read, prepare, encode, commit), `online` (the encoder pool that
feeds trainers), `train` (Ray Train). The verbs of the command line start `preprocess.driver` and
`train.driver`.
"""

from typing import TYPE_CHECKING, Any

from tidemill.ray.preprocess.commit_units import write_latents
from tidemill.ray.preprocess.encoder_actor import Encode, encode
from tidemill.ray.preprocess.prepare_task import Prepare
from tidemill.ray.preprocess.unit_datasource import read
from tidemill.run_file import resolve

if TYPE_CHECKING:
    from tidemill.ray.train.trainer import Trainer

__all__ = ["Encode", "Prepare", "Trainer", "encode", "read", "resolve", "write_latents"]


def __getattr__(name: str) -> Any:
    """Imports `Trainer` on first use.

    Ray Train takes seconds to import, and Ray Data's workers do not need it.
    """
    if name == "Trainer":
        from tidemill.ray.train.trainer import Trainer

        return Trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
