"""Trains a run on Ray Train: python train.py sd2.toml --workers 24..32 --accelerator A100."""

import argparse

import ray
import tidemill.ray
from ray.train import ScalingConfig


def workers(text: str) -> int | tuple[int, int]:
    """A number, or the fewest and the most."""
    fewest, _, most = text.partition("..")
    return (int(fewest), int(most)) if most else int(fewest)


def main() -> None:
    """Trains to the end, however often workers are lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_file")
    parser.add_argument("--mode", choices=["offline", "online", "colocated"], default="offline")
    parser.add_argument("--workers", type=workers, default=1, help="a number, or a range such as 24..32")
    parser.add_argument("--accelerator", help="the GPU of the nodes to train on, such as A100")
    parser.add_argument("--cpu", action="store_true", help="train without GPUs")
    args = parser.parse_args()
    ray.init(address="auto")
    scaling = ScalingConfig(num_workers=args.workers, use_gpu=not args.cpu, accelerator_type=args.accelerator)
    result = tidemill.ray.Trainer(args.run_file, mode=args.mode, scaling_config=scaling).fit()
    print(result.return_value)


if __name__ == "__main__":
    main()
