"""FID of two folders by torchmetrics. Usage: fid_torchmetrics GENERATED REFERENCE WEIGHTS"""

import json
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from torchmetrics.image.fid import FrechetInceptionDistance
from torchvision.io import ImageReadMode, decode_image

from benches import runner


class Folder(Dataset):
    def __init__(self, path: str) -> None:
        self.files = sorted(Path(path).iterdir())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return decode_image(str(self.files[index]), mode=ImageReadMode.RGB)


def main() -> None:
    generated, reference, weights = sys.argv[1:]
    torch.set_num_threads(runner.cores())
    metric = FrechetInceptionDistance(feature=2048, feature_extractor_weights_path=weights, antialias=False)
    for folder, is_real in ((reference, True), (generated, False)):
        for batch in DataLoader(Folder(folder), batch_size=32, num_workers=runner.cores()):
            metric.update(batch, real=is_real)
    print(json.dumps({"fid": float(metric.compute())}))


if __name__ == "__main__":
    main()
