"""Noise schedules and samplers of diffusers: tables, timesteps, and every step of many runs."""

import itertools
import json

import networks
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EDMDPMSolverMultistepScheduler,
    EDMEulerScheduler,
    FlowMatchEulerDiscreteScheduler,
)
from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import calculate_shift
from diffusers.training_utils import compute_snr

METHODS = ["ddim", "dpm++2m"]
SPACINGS = ["leading", "trailing", "linspace"]
BETAS = [("linear", 0.0001, 0.02), ("scaled_linear", 0.00085, 0.012)]
PREDICTIONS = ["epsilon", "v_prediction"]


def betas(schedule, start, end):
    return dict(beta_schedule=schedule, beta_start=start, beta_end=end)


def schedule_cases(rng, out):
    """Writes every kind of DDPM schedule: its table, noisy latents, and training targets."""
    kinds = itertools.product(BETAS, PREDICTIONS, [False, True])
    for index, (beta, prediction, zero_snr) in enumerate(kinds):
        folder = out / f"{index:02}"
        total = 1000 if index < 4 else rng.randint(50, 1500)
        scheduler = DDPMScheduler(
            num_train_timesteps=total,
            prediction_type=prediction,
            rescale_betas_zero_snr=zero_snr,
            clip_sample=False,
            **betas(*beta),
        )
        scheduler.save_pretrained(folder)
        latents, noise = torch.randn(2, 5, 3, 4, 2)
        timesteps = torch.cat([torch.tensor([0, total - 1]), torch.randint(0, total, (3,))])
        velocity = scheduler.get_velocity(latents, noise, timesteps)
        tensors = dict(
            alphas_cumprod=scheduler.alphas_cumprod,
            latents=latents,
            noise=noise,
            timesteps=timesteps,
            noisy=scheduler.add_noise(latents, noise, timesteps),
            target=velocity if prediction == "v_prediction" else noise,
            min_snr_weights=min_snr_weights(scheduler, rng.uniform(1, 20), folder),
        )
        networks.save(tensors, folder / "case.safetensors")


def min_snr_weights(scheduler, gamma, folder):
    """Computes weights as diffusers' examples/text_to_image/train_text_to_image.py does."""
    (folder / "case.json").write_text(json.dumps({"gamma": gamma}))
    snr = compute_snr(scheduler, torch.arange(scheduler.config.num_train_timesteps))
    least = torch.stack([snr, gamma * torch.ones_like(snr)], dim=1).min(dim=1)[0]
    return least / (snr + 1 if scheduler.config.prediction_type == "v_prediction" else snr)


def flow_cases(rng, out):
    """Writes schedules of rectified flow, used as in diffusers' train_dreambooth_sd3.py."""
    for index, shift in enumerate([1.0, 3.0, rng.uniform(0.3, 8), rng.uniform(0.3, 8)]):
        folder = out / f"{index:02}"
        total = 1000 if index < 2 else rng.randint(50, 1500)
        scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=total, shift=shift)
        scheduler.save_pretrained(folder)
        latents, noise = torch.randn(2, 5, 3, 4, 2)
        timesteps = torch.cat([torch.tensor([0, total - 1]), torch.randint(0, total, (3,))])
        tensors = networks.flow_step(scheduler, latents, noise, timesteps)
        networks.save(tensors, folder / "case.safetensors")
        (folder / "case.json").write_text(json.dumps({"image_seq_len": 1}))


def dynamic_flow_cases(rng, out):
    """Writes schedules whose shift follows from the size of the image, as in StableDiffusion3Pipeline."""
    for index in range(4):
        folder = out / f"{index:02}"
        scheduler, mu, image_seq_len = make_dynamic_flow(rng, index > 0)
        scheduler.save_pretrained(folder)
        scheduler.sigmas = scheduler.time_shift(mu, 1.0, scheduler.sigmas)
        scheduler.timesteps = scheduler.sigmas * scheduler.config.num_train_timesteps
        latents, noise = torch.randn(2, 5, 3, 4, 2)
        tensors = networks.flow_step(scheduler, latents, noise, torch.randint(0, 1000, (5,)))
        networks.save(tensors, folder / "case.safetensors")
        (folder / "case.json").write_text(json.dumps({"image_seq_len": image_seq_len}))


def make_dynamic_flow(rng, is_drawn):
    """A scheduler, an image's number of tokens, and the pipeline's mu for it."""
    names = ["base_image_seq_len", "max_image_seq_len", "base_shift", "max_shift"]
    drawn = [rng.randint(16, 256), rng.randint(2000, 9000), rng.uniform(-1, 1), rng.uniform(-1, 3)]
    values = dict(zip(names, drawn, strict=True)) if is_drawn else {}
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, **values)
    image_seq_len = rng.randint(4, 6000)
    return (
        scheduler,
        calculate_shift(image_seq_len, *[scheduler.config[name] for name in names]),
        image_seq_len,
    )


def draw_edm(rng):
    return dict(
        sigma_min=rng.uniform(0.001, 0.01),
        sigma_max=rng.uniform(10, 200),
        sigma_data=rng.uniform(0.3, 1.5),
        rho=rng.uniform(4, 9),
    )


def edm_cases(rng, out):
    """Writes schedules of EDM, used as in diffusers' train_dreambooth_lora_sdxl.py."""
    for index, (spacing, prediction) in enumerate(itertools.product(["karras", "exponential"], PREDICTIONS)):
        folder = out / f"{index:02}"
        total = 1000 if index == 0 else rng.randint(50, 1500)
        values = {} if index == 0 else draw_edm(rng)
        scheduler = EDMEulerScheduler(
            num_train_timesteps=total, prediction_type=prediction, sigma_schedule=spacing, **values
        )
        scheduler.save_pretrained(folder)
        latents, noise, output = torch.randn(3, 5, 3, 4, 2)
        timesteps = torch.cat([torch.tensor([0, total - 1]), torch.randint(0, total, (3,))])
        # The script's index counts the other way.
        index = total - 1 - timesteps
        sigmas = scheduler.sigmas[index].reshape(-1, 1, 1, 1)
        noisy = latents + sigmas * noise
        predicted = scheduler.precondition_outputs(noisy, output, sigmas)
        sigma_data = scheduler.config.sigma_data
        weighting = (sigmas**2 + sigma_data**2) / (sigmas * sigma_data) ** 2
        tensors = dict(
            latents=latents,
            noise=noise,
            timesteps=timesteps,
            network_timesteps=scheduler.timesteps[index],
            input=scheduler.precondition_inputs(noisy, sigmas),
            output=output,
            loss=(weighting * (predicted - latents) ** 2).mean([1, 2, 3]),
        )
        networks.save(tensors, folder / "case.safetensors")


def make_flow_sampler(method, shift):
    if method == "ddim":
        return FlowMatchEulerDiscreteScheduler(shift=shift)
    return DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift
    )


def make_sampler(method, prediction, zero_snr, spacing, offset, to_one, beta):
    shared = dict(
        prediction_type=prediction,
        rescale_betas_zero_snr=zero_snr,
        timestep_spacing=spacing,
        steps_offset=offset,
        **betas(*beta),
    )
    if method == "ddim":
        return DDIMScheduler(set_alpha_to_one=to_one, clip_sample=False, **shared)
    return DPMSolverMultistepScheduler(**shared)


def timestep_cases(out):
    """Writes the timesteps of every spacing for many numbers of steps."""
    out.mkdir(parents=True)
    table = []
    for method, spacing, offset in itertools.product(METHODS, SPACINGS, [0, 1]):
        scheduler = make_sampler(method, "epsilon", False, spacing, offset, True, BETAS[1])
        visited = {}
        for steps in [*range(1, 120), *range(120, 1000, 7)]:
            scheduler.set_timesteps(steps)
            timesteps = scheduler.timesteps.tolist()
            # For some numbers of steps, such as 61, rounding gives diffusers' trailing spacing one
            # more timestep, -1. Tidemill does not have it.
            assert timesteps[steps:] in ([], [-1])
            visited[steps] = timesteps[:steps]
        table.append(dict(method=method, spacing=spacing, offset=offset, timesteps=visited))
    (out / "table.json").write_text(json.dumps(table))


def sampler_cases(rng, out):
    """Writes a run of every kind of sampler: random outputs of the network, and the samples."""
    flags = [False, True]
    kinds = itertools.product(METHODS, PREDICTIONS, flags, SPACINGS, [0, 1], flags)
    # With noise prediction DDIM divides by the signal, which is zero in these schedules.
    kinds = [k for k in kinds if not (k[0] == "ddim" and k[1] == "epsilon" and k[2])]
    numbers = [1, 2, 3, 5, 10, 14, 15, 20, 25, 30, 50]
    samplers = [(kind[0], make_sampler(*kind, beta=rng.choice(BETAS))) for kind in kinds]
    shifts = [1.0, 3.0, rng.uniform(0.3, 8), rng.uniform(0.3, 8)]
    samplers += [(method, make_flow_sampler(method, shift)) for method in METHODS for shift in shifts]
    samplers += make_edm_samplers(rng)
    for index, (method, scheduler) in enumerate(samplers):
        steps = numbers[index] if index < len(numbers) else rng.choice(numbers)
        sampler_case(method, scheduler, steps, 1, {}, out / f"{index:02}")
    for index in range(4):
        scheduler, mu, image_seq_len = make_dynamic_flow(rng, index > 0)
        sampler_case(
            "ddim", scheduler, rng.choice(numbers), image_seq_len, {"mu": mu}, out / f"dynamic-{index}"
        )


def make_edm_samplers(rng):
    kinds = itertools.product(METHODS, PREDICTIONS, ["karras", "exponential"])
    classes = {"ddim": EDMEulerScheduler, "dpm++2m": EDMDPMSolverMultistepScheduler}
    return [
        (method, classes[method](prediction_type=prediction, sigma_schedule=spacing, **draw_edm(rng)))
        for method, prediction, spacing in kinds
    ]


def sampler_case(method, scheduler, steps, image_seq_len, settings, folder):
    """Writes a run of a sampler over random outputs of the network."""
    scheduler.save_pretrained(folder)
    if getattr(scheduler.config, "sigma_schedule", None) == "exponential":
        # With one step diffusers would start at sigma_min.
        steps = max(steps, 2)
    scheduler.set_timesteps(steps, **settings)
    noise, outputs = torch.randn(1, 2, 3, 3), torch.randn(steps, 1, 2, 3, 3)
    sample, inputs, samples = noise * getattr(scheduler, "init_noise_sigma", 1.0), [], []
    for timestep, output in zip(scheduler.timesteps, outputs, strict=True):
        is_scaled = hasattr(scheduler, "scale_model_input")
        inputs.append(scheduler.scale_model_input(sample, timestep) if is_scaled else sample)
        sample = scheduler.step(output, timestep, sample).prev_sample
        samples.append(sample)
    tensors = dict(noise=noise, outputs=outputs, inputs=torch.stack(inputs), samples=torch.stack(samples))
    networks.save(tensors | {"timesteps": scheduler.timesteps}, folder / "case.safetensors")
    about = {"method": method, "steps": steps, "image_seq_len": image_seq_len}
    (folder / "case.json").write_text(json.dumps(about))


def guided_cases(rng, out):
    """Writes runs of the whole sampling loop with a U-Net, with and without guidance."""
    kinds = itertools.product(METHODS, [1.0, rng.uniform(1.5, 9)], [False, True])
    for index, (method, guidance, is_flow) in enumerate(kinds):
        folder = out / f"{index:02}"
        unet = networks.make_unet(rng, rng.randrange(8), folder)
        kind = (rng.choice(PREDICTIONS), False, rng.choice(SPACINGS), 1, False, BETAS[1])
        scheduler = make_flow_sampler(method, rng.uniform(1, 4)) if is_flow else make_sampler(method, *kind)
        scheduler.save_pretrained(folder)
        steps, config = rng.randint(3, 9), unet.config
        scheduler.set_timesteps(steps)
        noise = torch.randn(2, config.in_channels, *networks.draw_size(rng, len(config.block_out_channels)))
        text, empty = torch.randn(3, 5, config.cross_attention_dim).split([2, 1])
        latents = guided(unet, scheduler, noise, text, empty, guidance)
        networks.save(dict(noise=noise, text=text, empty=empty, latents=latents), folder / "case.safetensors")
        about = {"method": method, "steps": steps, "guidance": guidance}
        (folder / "case.json").write_text(json.dumps(about))


@torch.no_grad()
def guided(unet, scheduler, latents, text, empty, guidance):
    both = torch.cat([empty.expand_as(text), text])
    for timestep in scheduler.timesteps:
        if guidance > 1:
            without, conditioned = unet(torch.cat([latents] * 2), timestep, both).sample.chunk(2)
            output = without + guidance * (conditioned - without)
        else:
            output = unet(latents, timestep, text).sample
        latents = scheduler.step(output, timestep, latents).prev_sample
    return latents
