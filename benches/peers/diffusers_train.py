"""Steps of diffusers' U-Net in PyTorch, as its training scripts take them: noise, loss, clipping, AdamW.

Latents and text are random and lie in memory. Prints images/s of each step and the seconds of the first.
"""

import argparse
import json
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from diffusers import DDPMScheduler, UNet2DConditionModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--size", type=int, required=True, help="of the latents")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    config = UNet2DConditionModel.load_config(args.models / "unet")
    unet = UNet2DConditionModel.from_config(config).train()
    if args.channels_last:
        unet.to(memory_format=torch.channels_last)
    schedule = DDPMScheduler.from_pretrained(args.models / "scheduler")
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4, fused=True)
    network = torch.compile(unet) if args.compile else unet
    latents = torch.randn(args.batch, config["in_channels"], args.size, args.size)
    text = torch.randn(args.batch, 77, config["cross_attention_dim"])

    def step() -> None:
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, schedule.config.num_train_timesteps, (args.batch,))
        noisy = schedule.add_noise(latents, noise, timesteps)
        v_prediction = schedule.config.prediction_type == "v_prediction"
        target = schedule.get_velocity(latents, noise, timesteps) if v_prediction else noise
        with torch.autocast("cpu", torch.bfloat16) if args.bf16 else nullcontext():
            prediction = network(noisy, timesteps, text).sample
        loss = torch.nn.functional.mse_loss(prediction.float(), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    seconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    rates = [args.batch / s for s in seconds]
    print(json.dumps({"images_per_second": rates, "first_step_s": seconds[0]}))


if __name__ == "__main__":
    main()
