"""A CLIP and a DINOv2 folder of transformers with their image processors, and what they give."""

import json
import shutil
from pathlib import Path

import torch
from transformers import (
    BitImageProcessorPil,
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPTokenizer,
    Dinov2Config,
    Dinov2Model,
)

ASSETS = Path(__file__).parents[4] / "assets"
WORDS = ["a", "small", "red", "circle", "large", "green", "star", "in", "the", "upper", "left"]


def make_cases(rng, out, images):
    """Writes the folders. Returns the processed images and the cosines of images and prompts."""
    layers = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2)
    text = dict(vocab_size=49408, eos_token_id=49407, **layers)
    config = CLIPConfig(
        text_config=text, vision_config=dict(image_size=28, patch_size=7, **layers), projection_dim=12
    )
    clip = CLIPModel(config).eval()
    clip.save_pretrained(out / "clip")
    for path in (ASSETS / "tokenizer").iterdir():
        shutil.copy(path, out / "clip" / path.name)
    size = dict(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    clip_processor = CLIPImageProcessorPil(**size)
    clip_processor.save_pretrained(out / "clip")

    Dinov2Model(Dinov2Config(image_size=28, patch_size=7, **layers)).save_pretrained(out / "dinov2")
    # DINOv2's own: the shorter side is larger than the crop.
    dinov2_processor = BitImageProcessorPil(
        size={"shortest_edge": 33},
        crop_size={"height": 28, "width": 28},
        resample=3,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    )
    dinov2_processor.save_pretrained(out / "dinov2")

    prompts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in images]
    (out / "prompts.json").write_text(json.dumps(prompts))
    tokens = CLIPTokenizer.from_pretrained(ASSETS / "tokenizer")(prompts, padding=True, return_tensors="pt")
    pixels = clip_processor(images, return_tensors="pt").pixel_values
    output = clip(pixel_values=pixels, **tokens)
    cosines = (output.image_embeds * output.text_embeds).sum(1)
    return dict(
        clip=pixels,
        dinov2=dinov2_processor(images, return_tensors="pt").pixel_values,
        cosines=torch.as_tensor(cosines),
    )
