"""Steps of diffusers' U-Net in Tidemill's trainer."""

import argparse
import json
import os
import tempfile
from pathlib import Path

import tidemill
import torch
from diffusers import UNet2DConditionModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=json.loads, help="a run file's content as JSON")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--eager", action="store_true")
    how.add_argument(
        "--compile", type=Path, metavar="FOLDER", help="compile; the cache is a new folder in FOLDER"
    )
    parser.add_argument("--mode", default="offline", help="of tidemill.train")
    args = parser.parse_args()
    torch.manual_seed(0)
    config = UNet2DConditionModel.load_config(Path(args.run["models.path"]) / "unet")
    unet = UNet2DConditionModel.from_config(config)
    if args.compile:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(dir=args.compile)
        unet = torch.compile(unet)
    tidemill.train(args.run, denoiser=unet, mode=args.mode)


if __name__ == "__main__":
    main()
