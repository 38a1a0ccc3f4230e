"""CLIP and DINOv2 of transformers with random shapes and weights, and their features."""

import torch
from networks import perturb, save
from transformers import CLIPConfig, CLIPModel, Dinov2Config, Dinov2Model


def draw_width(rng):
    """Draws the number of heads and a width that it divides."""
    heads = rng.randint(1, 4)
    return heads, heads * rng.randint(2, 6)


def clip_case(rng, index, out):
    """Writes a CLIP model, and its features of random images and texts."""
    (text_heads, text_width), (vision_heads, vision_width) = draw_width(rng), draw_width(rng)
    patch = rng.randint(2, 5)
    image_size = patch * rng.randint(2, 4) + rng.randrange(2)
    eos_token_id = 2 if index % 2 else rng.randint(20, 49)
    act = rng.choice(["quick_gelu", "gelu"])
    text = dict(
        vocab_size=50,
        hidden_size=text_width,
        intermediate_size=rng.randint(5, 40),
        num_hidden_layers=rng.randint(1, 3),
        num_attention_heads=text_heads,
        max_position_embeddings=rng.randint(8, 20),
        hidden_act=act,
        layer_norm_eps=rng.choice([1e-5, 1e-3]),
        bos_token_id=0,
        eos_token_id=eos_token_id,
    )
    vision = dict(
        hidden_size=vision_width,
        intermediate_size=rng.randint(5, 40),
        num_hidden_layers=rng.randint(1, 3),
        num_attention_heads=vision_heads,
        image_size=image_size,
        patch_size=patch,
        hidden_act=act,
        layer_norm_eps=rng.choice([1e-5, 1e-3]),
    )
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=rng.randint(3, 17))
    model = perturb(CLIPModel(config))
    model.save_pretrained(out)
    images = torch.randn(3, 3, image_size, image_size)
    ids = torch.randint(3, 20, (4, rng.randint(4, text["max_position_embeddings"])))
    # Each text ends somewhere; behind its end is padding of the same id.
    end = 49 if eos_token_id == 2 else eos_token_id
    for row in ids:
        row[rng.randint(1, len(row) - 1) :] = end
    with torch.no_grad():
        output = model(input_ids=ids, pixel_values=images)
        scale = model.logit_scale.exp()
        # The model's own vectors have unit length; ours do not.
        image = model.get_image_features(images).pooler_output
        text = model.get_text_features(ids).pooler_output
        cosines = output.logits_per_image / scale
    save(
        dict(images=images, ids=ids, image=image, text=text, cosines=cosines, scale=scale),
        out / "case.safetensors",
    )


def dinov2_case(rng, index, out):
    """Writes a DINOv2 model, and its features of random images of its own and of another size."""
    heads, width = draw_width(rng)
    patch = rng.randint(2, 5)
    config = Dinov2Config(
        hidden_size=width,
        num_hidden_layers=rng.randint(1, 3),
        num_attention_heads=heads,
        mlp_ratio=rng.randint(1, 4),
        image_size=patch * rng.randint(3, 5),
        patch_size=patch,
        use_swiglu_ffn=index % 2 == 1,
        layerscale_value=rng.uniform(0.3, 1.0),
        layer_norm_eps=rng.choice([1e-6, 1e-3]),
    )
    model = perturb(Dinov2Model(config))
    model.save_pretrained(out)
    tensors = {}
    sizes = dict(own=(config.image_size,) * 2, other=(patch * rng.randint(2, 6), patch * rng.randint(2, 6)))
    for name, size in sizes.items():
        tensors[f"{name}.images"] = images = torch.randn(2, 3, *size)
        with torch.no_grad():
            tensors[f"{name}.features"] = model(images).pooler_output
    save(tensors, out / "case.safetensors")
