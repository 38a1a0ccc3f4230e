"""FID's InceptionV3 with random weights, and its features by three libraries."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytorch_fid.inception
import torch
import torch_fidelity
from cleanfid.resize import build_resizer
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "scripts/convert_inception.py"

sys.path.insert(0, str(ROOT))
from benches.peers import inception_weights  # noqa: E402


def to_tensor(image):
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None]


def make_case(out, images):
    """Converts the weights into the folder `out` with the project's script. Returns the features."""
    out.mkdir()
    weights = out / "weights.pth"
    inception_weights.draw(weights)
    subprocess.run([sys.executable, SCRIPT, weights, out], check=True)
    network = FeatureExtractorInceptionV3("inception", ["2048"], feature_extractor_weights_path=weights)
    pytorch_fid.inception.load_state_dict_from_url = lambda *args, **kwargs: torch.load(weights)
    pytorch = pytorch_fid.inception.InceptionV3().eval()
    resize = build_resizer("clean")

    def clean(image):
        # As cleanfid.features and cleanfid.inception_torchscript, whose network cannot be had offline:
        # 299x299 pixels in [0, 255] are normalised and not resized again.
        resized = torch.from_numpy(resize(np.asarray(image))).permute(2, 0, 1)[None]
        return without_resize(network, resized)

    features = dict(
        torch_fidelity=[network(to_tensor(image))[0] for image in images],
        clean_fid=[clean(image) for image in images],
        pytorch_fid=[pytorch(to_tensor(image).float() / 255)[0].squeeze(-1).squeeze(-1) for image in images],
    )
    weights.unlink()
    return {name: torch.cat(rows).contiguous() for name, rows in features.items()}


def without_resize(network, pixels):
    """torch-fidelity's features of floats that have the network's size, where its resize changes nothing."""
    check = torch_fidelity.feature_extractor_inceptionv3.vassert
    torch_fidelity.feature_extractor_inceptionv3.vassert = lambda *args: None
    try:
        return network(pixels)[0]
    finally:
        torch_fidelity.feature_extractor_inceptionv3.vassert = check
