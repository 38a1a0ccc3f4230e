"""Trains the judge: a tiny network of DINOv2's form, by whose features the quickstart compares images.

Linear heads on the state of the class token name size, colour, shape and place, and whether the image
was degraded. The heads are thrown away.
"""

import json
from pathlib import Path

import torch
from transformers import Dinov2Config, Dinov2Model

from . import data

WIDTH = 32
BATCH = 128
LEARNING_RATE = 2e-3
WARMUP = 50
# Share of images with noise or blur, so that features tell good images from bad ones.
DEGRADED = 0.4

CONFIG = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "mlp_ratio": 4,
    "image_size": data.RESOLUTION,
    "patch_size": 8,
    "use_mask_token": False,
}
PREPROCESSOR = {
    "image_processor_type": "BitImageProcessor",
    "do_resize": True,
    "size": {"height": data.RESOLUTION, "width": data.RESOLUTION},
    "resample": 3,
    "do_center_crop": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def train(folder: Path, out: Path, steps: int, seed: int) -> None:
    images, classes = data.images_and_classes(folder)
    generator = torch.Generator().manual_seed(seed)
    model = Dinov2Model(Dinov2Config(**CONFIG))
    heads = torch.nn.ModuleList(torch.nn.Linear(WIDTH, n) for n in [*map(len, data.ATTRIBUTES.values()), 2])
    parameters = [*model.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, steps, pct_start=WARMUP / steps)
    for step in range(1, steps + 1):
        pick = torch.randint(len(images), (BATCH,), generator=generator)
        pixels, is_degraded = degrade(normalise(images[pick]), generator)
        states = model(pixels).pooler_output
        targets = [*classes[pick].T, is_degraded.long()]
        losses = [
            torch.nn.functional.cross_entropy(head(states), t) for head, t in zip(heads, targets, strict=True)
        ]
        loss = sum(losses)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            each = " ".join(f"{value.item():.3f}" for value in losses)
            print(f"judge: step {step} losses {each}", flush=True)
    model.half().save_pretrained(out / "judge")
    (out / "judge/preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=2) + "\n")


def normalise(images: torch.Tensor) -> torch.Tensor:
    """u8 [N, 3, 64, 64] to f32 in [-1, 1]."""
    return images.float() / 127.5 - 1


def degrade(pixels: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds noise to some images and blurs others. Returns which: bool [N]."""
    draw = torch.rand(len(pixels), 1, 1, 1, generator=generator)
    noise = torch.randn(pixels.shape, generator=generator) * torch.rand(draw.shape, generator=generator)
    blurred = torch.nn.functional.avg_pool2d(pixels, 7, stride=1, padding=3, count_include_pad=False)
    mixed = torch.where(draw < DEGRADED / 2, pixels + noise, torch.where(draw < DEGRADED, blurred, pixels))
    return mixed.clamp(-1, 1), draw.flatten() < DEGRADED


@torch.no_grad()
def features(assets: Path, images: torch.Tensor) -> torch.Tensor:
    """States of the class token, f32 [N, 32]."""
    model = Dinov2Model.from_pretrained(assets / "judge", dtype=torch.float32).eval()
    return torch.cat([model(normalise(batch)).pooler_output for batch in images.split(256)])
