"""Images from prompts by diffusers' pipeline.

Usage: diffusers_sample MODELS NOISE FOLDER PROMPTS METHOD STEPS GUIDANCE
"""

import json
import sys
import time
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from safetensors.torch import load_file
from transformers import CLIPTextModel, CLIPTokenizer

from benches import runner

SCHEDULERS = {"ddim": DDIMScheduler, "dpm++2m": DPMSolverMultistepScheduler}


def main() -> None:
    models, noise, folder, prompts, method, steps, guidance = sys.argv[1:]
    torch.set_num_threads(runner.cores())
    pipeline = StableDiffusionPipeline(
        vae=AutoencoderKL.from_pretrained(f"{models}/vae", torch_dtype=torch.float32),
        text_encoder=CLIPTextModel.from_pretrained(f"{models}/text_encoder", dtype=torch.float32),
        tokenizer=CLIPTokenizer.from_pretrained(f"{models}/tokenizer"),
        unet=UNet2DConditionModel.from_pretrained(f"{models}/unet"),
        scheduler=SCHEDULERS[method].from_pretrained(f"{models}/scheduler"),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    latents, texts = load_file(noise)["noise"], json.loads(prompts)
    side = 8 * latents.shape[-1]
    start = time.perf_counter()
    images = pipeline(
        texts,
        height=side,
        width=side,
        num_inference_steps=int(steps),
        guidance_scale=float(guidance),
        latents=latents,
    ).images
    seconds = time.perf_counter() - start
    Path(folder).mkdir(exist_ok=True)
    for index, image in enumerate(images):
        image.save(Path(folder) / f"{index:04}.png")
    print(json.dumps({"images_per_second": len(images) / seconds}))


if __name__ == "__main__":
    main()
