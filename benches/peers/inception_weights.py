"""Random weights for FID's InceptionV3, in the form of the published .pth file."""

from pathlib import Path

import torch
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3


def draw(path: Path) -> None:
    """Writes weights with which activations keep their scale from layer to layer."""
    network = FeatureExtractorInceptionV3.__new__(FeatureExtractorInceptionV3)
    torch.nn.Module.__init__(network)
    load = torch.load
    # Its constructor loads a file, and there is none yet.
    torch.load = lambda *args, **kwargs: network.state_dict()
    try:
        network.__init__("inception", ["2048"], feature_extractor_weights_path="none")
    finally:
        torch.load = load
    network.train()
    with torch.no_grad():
        for norm in network.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):
                # The statistics become those of the images below.
                norm.momentum = 1.0
                norm.weight.uniform_(0.5, 1.5)
                norm.bias.normal_(0, 0.3)
        network(torch.randint(0, 255, (4, 3, 80, 80), dtype=torch.uint8))
    network.eval()
    torch.save(network.state_dict(), path)
