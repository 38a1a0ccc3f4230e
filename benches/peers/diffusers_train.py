"""Training steps of diffusers' U-Net or SD3's transformer in PyTorch, like in diffusers' training scripts.

A step has noise, loss, clipping and AdamW. Latents and text are random and lie in memory. Writes a
line after each step.
"""

import argparse
import json
import os
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from diffusers import (
    DDPMScheduler,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    UNet2DConditionModel,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--size", type=int, required=True, help="size of the latents")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compile", nargs="?", const="default", help="torch.compile, in this mode")
    parser.add_argument("--log", type=Path, required=True, help="where to write a line after each step")
    parser.add_argument("--profile", type=Path, help="where to write a trace")
    parser.add_argument("--after", type=int, default=3, help="steps before the trace")
    args = parser.parse_args()
    torch.manual_seed(0)
    # Tidemill sets this, too.
    torch.backends.cudnn.benchmark = True
    is_flow = (args.models / "transformer").exists()
    model, part = (SD3Transformer2DModel, "transformer") if is_flow else (UNet2DConditionModel, "unet")
    config = model.load_config(args.models / part)
    unet = model.from_config(config).train().to(args.device)
    if args.channels_last:
        unet.to(memory_format=torch.channels_last)
    scheduler = FlowMatchEulerDiscreteScheduler if is_flow else DDPMScheduler
    schedule = scheduler.from_pretrained(args.models / "scheduler")
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4, fused=True)
    if args.compile:
        # An empty cache, so that compilation is measured.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(dir=args.log.parent)
    network = torch.compile(unet, mode=args.compile) if args.compile else unet
    latents = torch.randn(args.batch, config["in_channels"], args.size, args.size, device=args.device)
    conditions = draw_conditions(config, args.batch, args.device)
    kind = torch.device(args.device).type

    def step() -> None:
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, schedule.config.num_train_timesteps, (args.batch,), device=args.device)
        if is_flow:
            sigmas = (timesteps / schedule.config.num_train_timesteps).reshape(-1, 1, 1, 1)
            noisy, target = (1 - sigmas) * latents + sigmas * noise, noise - latents
        else:
            noisy = schedule.add_noise(latents, noise, timesteps)
            v_prediction = schedule.config.prediction_type == "v_prediction"
            target = schedule.get_velocity(latents, noise, timesteps) if v_prediction else noise
        with torch.autocast(kind, torch.bfloat16) if args.bf16 else nullcontext():
            prediction = network(noisy, timestep=timesteps, **conditions).sample
        loss = torch.nn.functional.mse_loss(prediction.float(), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        # The training scripts log the loss of each step, and so wait for it.
        loss.item()

    log = args.log.open("w")
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    for number in range(args.steps):
        if args.profile and number == args.after:
            profiler.start()
        start = time.perf_counter()
        step()
        log.write(json.dumps({"step": number + 1, "seconds": time.perf_counter() - start}) + "\n")
        log.flush()
    if args.profile:
        profiler.stop()
        profiler.export_chrome_trace(str(args.profile))


def draw_conditions(config: dict, batch: int, device: str) -> dict:
    """What the network takes beside noisy latents and timesteps."""

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(batch, *shape, device=device)

    if "joint_attention_dim" in config:
        text, pooled = draw(77, config["joint_attention_dim"]), draw(config["pooled_projection_dim"])
        return {"encoder_hidden_states": text, "pooled_projections": pooled}
    conditions: dict = {"encoder_hidden_states": draw(77, config["cross_attention_dim"])}
    if config.get("addition_embed_type"):
        pooled = config["projection_class_embeddings_input_dim"] - 6 * config["addition_time_embed_dim"]
        conditions["added_cond_kwargs"] = {"text_embeds": draw(pooled), "time_ids": draw(6)}
    return conditions


if __name__ == "__main__":
    main()
