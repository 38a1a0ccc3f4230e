"""Trains diffusers' U-Net on a latent dataset with Lightning; resumes at the next batch.

python examples/lightning_training.py runs/quickstart/dataset --models assets --resolution 64 --steps 100
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import tidemill
import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel


class LatentDataModule(lightning.LightningDataModule):
    """Batches of a latent dataset. Lightning's checkpoints hold the stream's position."""

    def __init__(self, dataset: str, resolution: int, global_batch: int) -> None:
        super().__init__()
        self.arguments = {"resolution": resolution, "global_batch": global_batch}
        self.dataset = dataset

    def train_dataloader(self) -> tidemill.StreamDataset:
        world = {"ranks": self.trainer.world_size, "rank": self.trainer.global_rank}
        return tidemill.StreamDataset(self.dataset, **self.arguments, **world)


class LatentDiffusion(lightning.LightningModule):
    """The U-Net of a model folder, from random weights."""

    def __init__(self, models: str, learning_rate: float) -> None:
        super().__init__()
        self.unet = UNet2DConditionModel.from_config(
            UNet2DConditionModel.load_config(models, subfolder="unet")
        )
        self.scheduler = DDPMScheduler.from_pretrained(models, subfolder="scheduler")
        self.scaling_factor = AutoencoderKL.load_config(models, subfolder="vae")["scaling_factor"]
        self.learning_rate = learning_rate

    # Lightning fetches a batch ahead of the step. A step that takes its batch itself loses none when a run
    # resumes.
    def training_step(self, dataloader_iter: Iterator[Any]) -> torch.Tensor:
        batch, _, _ = next(dataloader_iter)
        mean, log_variance = batch["latents"].to(self.device).float().chunk(2, dim=1)
        deviation = (0.5 * log_variance.clamp(-30, 20)).exp()
        # The dataset has unscaled moments. They are scaled once, here.
        latents = self.scaling_factor * (mean + deviation * torch.randn_like(mean))
        noise = torch.randn_like(latents)
        steps = self.scheduler.config.num_train_timesteps
        timesteps = torch.randint(0, steps, (len(latents),), device=self.device)
        noisy = self.scheduler.add_noise(latents, noise, timesteps)
        text = batch["text"].to(self.device).float()
        is_velocity = self.scheduler.config.prediction_type == "v_prediction"
        target = self.scheduler.get_velocity(latents, noise, timesteps) if is_velocity else noise
        loss = torch.nn.functional.mse_loss(self.unet(noisy, timesteps, text).sample, target)
        self.log("loss", loss, prog_bar=True, batch_size=len(latents))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


def train(args: argparse.Namespace) -> LatentDiffusion:
    """Trains to the given step, from the last checkpoint if there is one."""
    data = LatentDataModule(args.dataset, args.resolution, args.global_batch)
    module = LatentDiffusion(args.models, args.learning_rate)
    saved = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=args.output, save_last=True, every_n_train_steps=50
    )
    trainer = lightning.Trainer(
        max_steps=args.steps,
        default_root_dir=args.output,
        callbacks=[saved],
        logger=False,
        log_every_n_steps=1,
    )
    last = Path(args.output) / "last.ckpt"
    trainer.fit(module, data, ckpt_path=last if last.exists() else None, weights_only=False)
    trainer.save_checkpoint(last)
    return module


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="a latent dataset, such as runs/quickstart/dataset")
    parser.add_argument("--models", required=True, help="the model folder that made it")
    parser.add_argument("--resolution", type=int, required=True)
    parser.add_argument("--global-batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--output", default="runs/lightning")
    return parser.parse_args(argv)


if __name__ == "__main__":
    train(parse_arguments())
