"""Tiny networks of diffusers and transformers with random shapes and weights, and their results."""

import json
import math

import torch
from diffusers import AutoencoderKL, DDPMScheduler, FlowMatchEulerDiscreteScheduler, UNet2DConditionModel
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    T5Config,
    T5EncoderModel,
)


def save(tensors, path):
    """Writes tensors, which may share memory or have any strides."""
    plain = torch.contiguous_format
    save_file({name: t.detach().clone(memory_format=plain) for name, t in tensors.items()}, path)


def perturb(model):
    """Changes weights so that mistakes show in the results.

    Weights and biases of norms move away from one and zero. Other weights are scaled, and some
    become small, so that the epsilons of norms matter.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
            else:
                parameter *= torch.empty(()).uniform_(0.5, 1.2)
    return model.eval()


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def draw_channels(rng, levels):
    """Draws the number of groups, and the channels per level, often odd.

    There are at least six channels, and two in a group: gradients of norms over fewer values are
    rounding errors only.
    """
    groups = rng.choice([1, 3, 5])
    return groups, [groups * rng.randint(max(2, 6 // groups), 25 // groups) for _ in range(levels)]


def draw_size(rng, levels):
    """Draws height and width, mostly odd, with at least two pixels on the innermost level."""
    step = 2 ** (levels - 1)
    return [max(5, step * rng.randint(2, 3) + rng.randrange(step + 1)) for _ in range(2)]


def draw_unet(rng, index):
    """Draws a configuration. Indices 0 to 7 cover each number of levels with both projections."""
    levels = 1 + index % 4
    groups, channels = draw_channels(rng, levels)
    per_level = rng.random() < 0.5
    heads, depths = rng.choice(divisors(math.gcd(*channels))), rng.randint(1, 2)
    if per_level:
        heads = tuple(rng.choice(divisors(c)) for c in channels)
        depths = tuple(rng.randint(1, 3) for _ in channels)
    cross = [rng.random() < 0.6 for _ in range(levels)]
    up_cross = cross[::-1] if rng.random() < 0.7 else [rng.random() < 0.5 for _ in range(levels)]
    return dict(
        sample_size=rng.randint(5, 64),
        in_channels=(latents := rng.randint(3, 5)),
        out_channels=latents,
        flip_sin_to_cos=rng.random() < 0.5,
        freq_shift=rng.randrange(2) if channels[0] >= 4 else 0,
        down_block_types=tuple("CrossAttnDownBlock2D" if c else "DownBlock2D" for c in cross),
        up_block_types=tuple("CrossAttnUpBlock2D" if c else "UpBlock2D" for c in up_cross),
        block_out_channels=tuple(channels),
        layers_per_block=rng.randint(1, 3),
        downsample_padding=int(rng.random() < 0.8),
        norm_num_groups=groups,
        norm_eps=rng.choice([1e-5, 1e-6]),
        cross_attention_dim=rng.randint(3, 17),
        transformer_layers_per_block=depths,
        attention_head_dim=heads,
        use_linear_projection=(index + index // 4) % 2 == 0,
        upcast_attention=rng.random() < 0.3,
    )


def draw_added(rng):
    """Draws the options of SDXL's micro-conditioning."""
    size, pooled = rng.randint(4, 9), rng.randint(3, 17)
    return dict(
        addition_embed_type="text_time",
        addition_time_embed_dim=size,
        projection_class_embeddings_input_dim=6 * size + pooled,
    )


def draw_conditions(rng, config, n):
    """Text embeddings and, for a U-Net of SDXL's form, pooled text and sizes."""
    conditions = dict(text=torch.randn(n, rng.randint(2, 11), config.cross_attention_dim))
    if config.addition_embed_type:
        sizes = 6 * config.addition_time_embed_dim
        conditions["pooled"] = torch.randn(n, config.projection_class_embeddings_input_dim - sizes)
        conditions["time_ids"] = torch.randint(0, 2000, (n, 6)).float()
    return conditions


def predict(model, noisy, timesteps, conditions):
    added = None
    if "pooled" in conditions:
        added = dict(text_embeds=conditions["pooled"], time_ids=conditions["time_ids"])
    return model(noisy, timesteps, conditions["text"], added_cond_kwargs=added).sample


def make_unet(rng, index, folder, is_xl=False):
    options = draw_unet(rng, index) | (draw_added(rng) if is_xl else {})
    model = perturb(UNet2DConditionModel(**options))
    model.save_pretrained(folder)
    return model


def draw_scheduler(rng):
    return dict(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule=rng.choice(["linear", "scaled_linear"]),
        prediction_type=rng.choice(["epsilon", "v_prediction"]),
        rescale_betas_zero_snr=rng.random() < 0.3,
        clip_sample=False,
    )


def flow_step(scheduler, latents, noise, timesteps):
    """The inputs of a training step at these timesteps, which count from little noise to much."""
    # The script's index counts the other way.
    index = scheduler.config.num_train_timesteps - 1 - timesteps
    sigmas = scheduler.sigmas[index].reshape(-1, 1, 1, 1)
    return dict(
        latents=latents,
        noise=noise,
        timesteps=timesteps,
        network_timesteps=scheduler.timesteps[index],
        noisy=(1.0 - sigmas) * latents + sigmas * noise,
        target=noise - latents,
    )


def unet_case(rng, index, out, is_flow, is_xl):
    """Writes a U-Net and one training step with it: noisy latents, prediction, loss, gradients."""
    model = make_unet(rng, index, out, is_xl)
    n, config = rng.randint(1, 3), model.config
    latents = torch.randn(n, config.in_channels, *draw_size(rng, len(config.block_out_channels)))
    noise = torch.randn_like(latents)
    timesteps = torch.randint(0, 1000, (n,))
    conditions = draw_conditions(rng, config, n)
    if is_flow:
        scheduler = FlowMatchEulerDiscreteScheduler(shift=rng.uniform(1, 4))
        inputs = flow_step(scheduler, latents, noise, timesteps)
    else:
        scheduler = DDPMScheduler(**draw_scheduler(rng))
        velocity = scheduler.config.prediction_type == "v_prediction"
        target = scheduler.get_velocity(latents, noise, timesteps) if velocity else noise
        noisy = scheduler.add_noise(latents, noise, timesteps)
        inputs = dict(latents=latents, noise=noise, timesteps=timesteps, noisy=noisy, target=target)
    scheduler.save_pretrained(out)
    noisy, timesteps = inputs["noisy"], inputs.get("network_timesteps", timesteps)
    output = predict(model, noisy, timesteps, conditions)
    loss = torch.nn.functional.mse_loss(output, inputs["target"])
    loss.backward()
    tensors = inputs | conditions | dict(output=output)
    tensors |= {f"grad.{name}": p.grad for name, p in model.named_parameters()}
    save(tensors | {"loss": loss}, out / "case.safetensors")
    # The counter does not support flash attention on a CPU.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        predict(model, noisy, timesteps, conditions)
    (out / "case.json").write_text(json.dumps({"flops": counter.get_total_flops()}))


def make_vae(rng, index, folder):
    levels = 1 + index % 4
    groups, channels = draw_channels(rng, levels)
    model = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        block_out_channels=tuple(channels),
        layers_per_block=rng.randint(1, 3),
        latent_channels=rng.randint(3, 5),
        norm_num_groups=groups,
        sample_size=rng.randint(8, 64),
        scaling_factor=rng.uniform(0.1, 2.0),
        shift_factor=rng.choice([None, rng.uniform(0.01, 1.0)]),
        mid_block_add_attention=index != 4,
        use_quant_conv=index != 5,
        use_post_quant_conv=index != 5,
    )
    perturb(model).save_pretrained(folder)
    return model


def vae_case(rng, index, out):
    """Writes a VAE, the moments of random images, and random latents with their images."""
    model = make_vae(rng, index, out)
    size = draw_size(rng, len(model.config.block_out_channels))
    with torch.no_grad():
        images = torch.rand(2, 3, *size) * 2 - 1
        moments = model.encode(images).latent_dist.parameters
        latents = torch.randn(2, model.config.latent_channels, *rng.choice([(2, 3), (5, 4), (3, 7)]))
        decoded = model.decode(latents).sample
    tensors = dict(images=images, moments=moments, latents=latents, decoded=decoded)
    save(tensors, out / "case.safetensors")
    about = {"scaling_factor": model.config.scaling_factor, "shift_factor": model.config.shift_factor or 0.0}
    (out / "case.json").write_text(json.dumps(about))


def make_text_encoder(rng, index, folder, width=None, has_projection=False):
    heads = rng.choice([1, 3, 5])
    config = CLIPTextConfig(
        vocab_size=rng.randint(60, 300),
        hidden_size=width or heads * rng.randint(2, 9),
        intermediate_size=rng.randint(7, 60),
        num_hidden_layers=rng.randint(1, 4),
        num_attention_heads=1 if width else heads,
        max_position_embeddings=rng.randint(7, 77),
        hidden_act=["quick_gelu", "gelu"][index % 2],
        layer_norm_eps=rng.choice([1e-5, 1e-6]),
        # 2 was written before transformers 4.31, and means the largest id.
        eos_token_id=rng.choice([59, 2]),
        projection_dim=rng.randint(3, 17),
        bos_token_id=58,
        pad_token_id=0,
    )
    model = perturb((CLIPTextModelWithProjection if has_projection else CLIPTextModel)(config))
    model.save_pretrained(folder)
    return model


def t5_case(rng, index, out):
    """Writes T5's encoder and the last hidden state of random ids, some farther apart than classes reach."""
    config = T5Config(
        vocab_size=rng.randint(20, 90),
        d_model=rng.randint(3, 17),
        d_kv=rng.randint(2, 9),
        d_ff=rng.randint(5, 30),
        num_layers=rng.randint(1, 3),
        num_heads=rng.randint(1, 4),
        relative_attention_num_buckets=4 * rng.randint(1, 8),
        relative_attention_max_distance=rng.randint(16, 128),
        layer_norm_epsilon=rng.choice([1e-5, 1e-6]),
        feed_forward_proj=["gated-gelu", "relu"][index % 2],
    )
    model = perturb(T5EncoderModel(config))
    model.save_pretrained(out)
    ids = torch.randint(0, config.vocab_size, (2, rng.randint(2, 200)))
    with torch.no_grad():
        save(dict(ids=ids, hidden=model(ids)[0]), out / "case.safetensors")


def text_case(rng, index, out):
    """Writes a text encoder and, of random ids, the last two hidden states and the pooled output."""
    has_projection = index % 2 == 1
    model = make_text_encoder(rng, index // 2, out, has_projection=has_projection)
    config = model.config
    ids = torch.randint(0, config.vocab_size, (3, rng.randint(2, config.max_position_embeddings)))
    with torch.no_grad():
        output = model(ids, output_hidden_states=True)
    tensors = dict(ids=ids, hidden=output.last_hidden_state, penultimate=output.hidden_states[-2])
    if has_projection:
        tensors["pooled"] = output.text_embeds
    save(tensors, out / "case.safetensors")
