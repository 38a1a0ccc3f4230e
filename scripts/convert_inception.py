"""Converts FID's InceptionV3 from the usual .pth file to a folder that `[eval]` opens.

Usage: convert_inception.py WEIGHTS.pth FOLDER

WEIGHTS.pth is pt_inception-2015-12-05-6726825d.pth of pytorch-fid, or
weights-inception-2015-12-05-6726825d.pth of torch-fidelity; both have the same weights under the same names.
The classifier, which no distance uses, is left out.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    weights, folder = Path(sys.argv[1]), Path(sys.argv[2])
    state = torch.load(weights, map_location="cpu", weights_only=True)
    if "Mixed_7c.branch_pool.conv.weight" not in state:
        sys.exit(f"{weights} is not InceptionV3: it has no Mixed_7c.branch_pool.conv.weight")
    unused = ("fc.", "AuxLogits.")
    kept = {
        name: tensor.float().contiguous()
        for name, tensor in state.items()
        if not name.startswith(unused) and not name.endswith("num_batches_tracked")
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "fid_inception_v3"}, indent=2) + "\n")
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    print(f"{len(kept)} tensors in {folder / 'model.safetensors'}")


main()
