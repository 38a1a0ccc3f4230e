"""Images that Tidemill and diffusers draw."""

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file


def psnr(a, b):
    return 10 * np.log10(255**2 / max(np.mean((a.astype(float) - b.astype(float)) ** 2), 1e-9))


def assert_same_samples(pipeline, samples, prompts, **options):
    """diffusers' pipeline draws the images in the folder `samples`, which has their noise."""
    pipeline.set_progress_bar_config(disable=True)
    noise = load_file(samples / "noise.safetensors")["noise"]
    with torch.no_grad():
        drawn = pipeline(
            prompts, height=64, width=64, num_inference_steps=10, guidance_scale=3.0, latents=noise, **options
        ).images
    for i, theirs in enumerate(drawn):
        ours = np.asarray(Image.open(samples / f"{i:04}.png"))
        agreement = psnr(ours, np.asarray(theirs))
        print(f"PSNR {agreement:.1f} dB")
        assert agreement >= 35
        assert ours.std() > 1, "a blank image proves nothing"
