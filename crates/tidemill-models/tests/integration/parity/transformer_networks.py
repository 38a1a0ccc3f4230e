"""Tiny transformers of Stable Diffusion 3's form, and a training step of each."""

import json

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
from networks import flow_step, perturb, save
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def draw_transformer(rng, index):
    """Draws a configuration. Every second one has Stable Diffusion 3.5's norms and dual attention."""
    layers, heads, head_width = rng.randint(1, 4), rng.choice([1, 2, 3]), 4 * rng.randint(1, 5)
    patch = rng.choice([1, 2, 2, 3])
    is_35 = index % 2 == 1
    dual = rng.sample(range(layers), rng.randint(0, layers)) if is_35 else ()
    channels = rng.randint(3, 6)
    return dict(
        sample_size=patch * rng.randint(1, 9) + rng.randrange(patch),
        patch_size=patch,
        in_channels=channels,
        out_channels=channels,
        num_layers=layers,
        attention_head_dim=head_width,
        num_attention_heads=heads,
        joint_attention_dim=rng.randint(3, 17),
        caption_projection_dim=heads * head_width,
        pooled_projection_dim=rng.randint(3, 17),
        pos_embed_max_size=rng.randint(5, 12),
        dual_attention_layers=tuple(sorted(dual)),
        qk_norm="rms_norm" if is_35 else None,
    )


def transformer_case(rng, index, out):
    """Writes a transformer and one training step with it: noisy latents, prediction, loss, gradients."""
    model = perturb(SD3Transformer2DModel(**draw_transformer(rng, index)))
    # Positions of a published file need not be those that are computed.
    if index % 3 == 0:
        model.pos_embed.pos_embed += 0.1
    model.save_pretrained(out)
    config, n = model.config, rng.randint(1, 3)
    size = [config.patch_size * rng.randint(1, config.pos_embed_max_size) for _ in range(2)]
    latents = torch.randn(n, config.in_channels, *size)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=rng.uniform(1, 4))
    scheduler.save_pretrained(out)
    inputs = flow_step(scheduler, latents, torch.randn_like(latents), torch.randint(0, 1000, (n,)))
    text = torch.randn(n, rng.randint(2, 11), config.joint_attention_dim)
    pooled = torch.randn(n, config.pooled_projection_dim)

    def predict():
        return model(inputs["noisy"], text, pooled, inputs["network_timesteps"]).sample

    output = predict()
    loss = torch.nn.functional.mse_loss(output, inputs["target"])
    loss.backward()
    tensors = inputs | dict(text=text, pooled=pooled, output=output, loss=loss)
    tensors |= {f"grad.{name}": p.grad for name, p in model.named_parameters()}
    save(tensors, out / "case.safetensors")
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        predict()
    (out / "case.json").write_text(json.dumps({"flops": counter.get_total_flops()}))
