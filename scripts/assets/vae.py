"""Trains the VAE: 64 x 64 pixels to 8 x 8 x 4 latents and back, with a weak pull to N(0, 1)."""

import math
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKL

from . import data

CONFIG = {
    "in_channels": 3,
    "out_channels": 3,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [16, 32, 64, 64],
    "layers_per_block": 1,
    "latent_channels": 4,
    "norm_num_groups": 16,
    "act_fn": "silu",
    "sample_size": data.RESOLUTION,
}
BATCH = 16
LEARNING_RATE = 1.5e-3
WARMUP = 100
# Weight of the absolute error, which keeps edges from blurring once the squared error is small.
L1_WEIGHT = 0.1
# Weight of the KL divergence per latent value: enough to keep latents smooth, too little to cost
# detail.
KL_WEIGHT = 1e-4
SAVE_EVERY = 500


def train(train_folder: Path, test_folder: Path, out: Path, steps: int, seed: int) -> None:
    images, test = data.images(train_folder), data.images(test_folder)[:256]
    print(f"vae: {len(images)} images", flush=True)
    generator = torch.Generator().manual_seed(seed)
    model = AutoencoderKL(**CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warmup_cosine(step, steps))
    start = time.time()
    for step in range(1, steps + 1):
        batch = normalise(images[torch.randint(len(images), (BATCH,), generator=generator)])
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"vae: step {step} loss {loss.item():.5f} {time.time() - start:.0f} s", flush=True)
        if step % SAVE_EVERY == 0 or step == steps:
            # A copy of the state dict, so that training continues in f32.
            copy = AutoencoderKL(**CONFIG)
            copy.load_state_dict(model.state_dict())
            save(copy, images[:1024], out)
            print(f"vae: step {step} PSNR {psnr(load(out), test):.2f} dB", flush=True)


def warmup_cosine(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / WARMUP) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / steps)))


def loss_of(model: AutoencoderKL, batch: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        posterior = model.encode(batch).latent_dist
        decoded = model.decode(posterior.sample()).sample
    error = decoded.float() - batch
    kl = posterior.kl().mean() / posterior.mean[0].numel()
    return error.square().mean() + L1_WEIGHT * error.abs().mean() + KL_WEIGHT * kl


def normalise(images: torch.Tensor) -> torch.Tensor:
    """u8 to [-1, 1]."""
    return images.float() / 127.5 - 1.0


@torch.no_grad()
def save(model: AutoencoderKL, images: torch.Tensor, out: Path) -> None:
    even_out(model, normalise(images))
    latents = torch.cat([model.encode(b).latent_dist.sample() for b in normalise(images).split(256)])
    model.register_to_config(scaling_factor=round(1.0 / latents.std().item(), 5))
    model.half().save_pretrained(out / "vae")


def even_out(model: AutoencoderKL, images: torch.Tensor) -> None:
    """Gives every latent channel mean 0 and the same deviation.

    It is folded into the 1 x 1 convolutions around the latents, so what the VAE does to an image
    stays the same, and noise hits all channels alike.
    """
    posteriors = [model.encode(batch).latent_dist for batch in images.split(256)]
    latents = torch.cat([posterior.sample() for posterior in posteriors])
    mean, deviation = latents.mean((0, 2, 3)), latents.std((0, 2, 3))
    scale = deviation.mean() / deviation
    into, back = model.quant_conv, model.post_quant_conv
    channels = len(mean)
    into.weight[:channels] *= scale[:, None, None, None]
    into.bias[:channels] = (into.bias[:channels] - mean) * scale
    into.bias[channels:] += 2.0 * scale.log()
    back.bias += back.weight[:, :, 0, 0] @ mean
    back.weight /= scale[None, :, None, None]


def load(folder: Path) -> AutoencoderKL:
    return AutoencoderKL.from_pretrained(folder / "vae", torch_dtype=torch.float32)


@torch.no_grad()
def reconstruct(model: AutoencoderKL, images: torch.Tensor) -> torch.Tensor:
    """Through the mean of the moments and back: u8 to u8."""
    decoded = [
        model.decode(model.encode(batch).latent_dist.mean).sample for batch in normalise(images).split(128)
    ]
    return ((torch.cat(decoded) + 1.0) * 127.5).round().clamp(0, 255).to(torch.uint8)


def psnr(model: AutoencoderKL, images: torch.Tensor) -> float:
    """The peak signal-to-noise ratio of all images together, in dB."""
    error = (reconstruct(model, images).float() - images.float()).square().mean()
    return 10.0 * math.log10(255.0**2 / error.item())
