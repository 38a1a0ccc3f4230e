"""Trains diffusers' U-Net on a latent dataset with accelerate; resumes at the next batch.

accelerate launch examples/accelerate_training.py runs/quickstart/dataset --models assets \
    --resolution 64 --steps 100
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import tidemill
import torch
from accelerate import Accelerator
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel


def compute_loss(unet, scheduler, scaling_factor, batch, device) -> torch.Tensor:
    """The mean squared error of the predicted noise (or velocity)."""
    mean, log_variance = torch.from_dlpack(batch.latents).to(device).float().chunk(2, dim=1)
    deviation = (0.5 * log_variance.clamp(-30, 20)).exp()
    # The dataset has unscaled moments. They are scaled once, here.
    latents = scaling_factor * (mean + deviation * torch.randn_like(mean))
    noise = torch.randn_like(latents)
    timesteps = torch.randint(0, scheduler.config.num_train_timesteps, (len(latents),), device=device)
    noisy = scheduler.add_noise(latents, noise, timesteps)
    text = torch.from_dlpack(batch.text).to(device).float()
    is_velocity = scheduler.config.prediction_type == "v_prediction"
    target = scheduler.get_velocity(latents, noise, timesteps) if is_velocity else noise
    return torch.nn.functional.mse_loss(unet(noisy, timesteps, text).sample, target)


def train(args: argparse.Namespace) -> torch.nn.Module:
    """Trains to the given step, from the last checkpoint if there is one."""
    accelerator = Accelerator(gradient_accumulation_steps=1)
    unet = UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(args.models, subfolder="unet"))
    scheduler = DDPMScheduler.from_pretrained(args.models, subfolder="scheduler")
    scaling_factor = AutoencoderKL.load_config(args.models, subfolder="vae")["scaling_factor"]
    optimizer = torch.optim.AdamW(unet.parameters(), lr=args.learning_rate)
    unet, optimizer = accelerator.prepare(unet, optimizer)

    folder, step, state = Path(args.output), 0, None
    position = folder / "position.json"
    if position.exists():
        accelerator.load_state(folder / "state")
        step, state = json.loads(position.read_text())
    # Each process gets its part of every global batch, so the stream is not prepared by accelerate.
    stream = tidemill.Stream(
        args.dataset,
        resolution=args.resolution,
        global_batch=args.global_batch,
        ranks=accelerator.num_processes,
        rank=accelerator.process_index,
        state=state,
    )
    while step < args.steps:
        loss = compute_loss(unet, scheduler, scaling_factor, next(stream), accelerator.device)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % args.save_every == 0 or step == args.steps:
            accelerator.print(f"step {step}: loss {loss.item():.4f}")
            accelerator.save_state(folder / "state")
            if accelerator.is_main_process:
                position.write_text(json.dumps([step, stream.state_dict()]))
    return accelerator.unwrap_model(unet)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="a latent dataset, such as runs/quickstart/dataset")
    parser.add_argument("--models", required=True, help="the model folder that made it")
    parser.add_argument("--resolution", type=int, required=True)
    parser.add_argument("--global-batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--output", default="runs/accelerate")
    return parser.parse_args(argv)


if __name__ == "__main__":
    train(parse_arguments())
