"""Opens what Tidemill wrote with diffusers and transformers, and compares weights and a sampling run.

Usage: open_exports.py FOLDER, where FOLDER has `pipeline` (the source) and `written` (by Tidemill).
"""

import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline, UNet2DConditionModel
from safetensors.torch import load_file
from transformers import CLIPTextModel


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def open_fully(kind, folder):
    """Opens a model, and checks that every tensor was found and used."""
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def main():
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    source, written = root / "pipeline", root / "written"
    for kind, part in [(AutoencoderKL, "vae"), (CLIPTextModel, "text_encoder")]:
        found, expected = open_fully(kind, written / part), open_fully(kind, source / part)
        assert_same(found.state_dict(), expected.state_dict())
    assert_same_results(written, source)

    unet = load_file(written / "unet.safetensors")
    assert_same(open_fully(UNet2DConditionModel, written / "unet").state_dict(), unet)
    run = load_file(written / "run.safetensors")
    exports = [("export", "latents"), ("export-flow", "flow_latents"), ("export-edm", "edm_latents")]
    for export, latents in exports:
        assert_same_samples(written / export, unet, run, run[latents])


def assert_same_samples(export, unet, run, expected):
    pipeline = StableDiffusionPipeline.from_pretrained(export)
    assert pipeline.safety_checker is None
    assert_same(pipeline.unet.state_dict(), unet)
    latents = pipeline(
        prompt_embeds=run["text"],
        negative_prompt_embeds=run["empty"],
        latents=run["noise"],
        height=8,
        width=8,
        guidance_scale=4.0,
        num_inference_steps=5,
        output_type="latent",
    ).images
    deviation = ((latents - expected).abs().max() / latents.abs().max()).item()
    print(f"latents of {export.name}: max |d| {deviation:.1e} of the scale (limit 2e-4)")
    assert deviation <= 2e-4


@torch.no_grad()
def assert_same_results(written, source):
    """Checks that both folders compute the same, so that their configurations agree as well."""
    images, ids = torch.rand(1, 3, 8, 8), torch.randint(0, 50, (1, 7))
    vaes = [AutoencoderKL.from_pretrained(folder / "vae") for folder in (written, source)]
    moments = [vae.encode(images).latent_dist.parameters for vae in vaes]
    assert torch.equal(*moments)
    assert vaes[0].config.scaling_factor == vaes[1].config.scaling_factor
    encoders = [CLIPTextModel.from_pretrained(folder / "text_encoder") for folder in (written, source)]
    assert torch.equal(*[encoder(ids).last_hidden_state for encoder in encoders])


main()
