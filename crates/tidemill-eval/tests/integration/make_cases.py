"""Writes what the tests compare with: networks, images, features, and the results of other libraries.

Usage: make_cases.py FOLDER SEED. Every weight and every input is drawn from the seed.
"""

import json
import random
import sys
from pathlib import Path

import inception
import numpy as np
import reference_metrics
import torch
import transformers_towers
from PIL import Image
from safetensors.torch import save_file


def draw_image(rng, width, height):
    """Draws waves and noise."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / rng.uniform(2, 40) + y / rng.uniform(2, 40) + rng.random()) for _ in range(3)]
    noise = np.random.default_rng(rng.randrange(2**32)).normal(0, 0.2, (height, width, 3))
    pixels = (np.stack(waves, -1) * 0.5 + noise) * 127 + 128
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def main():
    out, seed = Path(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    (out / "images").mkdir()
    sizes = [(64, 64), (299, 299)] + [(rng.randint(40, 600), rng.randint(40, 600)) for _ in range(3)]
    for index, (width, height) in enumerate(sizes):
        draw_image(rng, width, height).save(out / "images" / f"{index}.png")
    images = [Image.open(path).convert("RGB") for path in sorted((out / "images").iterdir())]
    with torch.no_grad():
        save_file(inception.make_case(out / "inception", images), out / "inception.safetensors")
        save_file(transformers_towers.make_cases(rng, out, images), out / "processed.safetensors")
    metrics = {}
    for name, (width, count) in dict(wide=(96, 300), narrow=(12, 200)).items():
        generated = torch.randn(count, width) @ torch.randn(width, width) * 0.2 + 0.1
        reference = torch.randn(count + 50, width) @ torch.randn(width, width) * 0.2
        save_file(dict(generated=generated, reference=reference), out / f"features-{name}.safetensors")
        metrics[name] = reference_metrics.compare(generated, reference)
    unit = [torch.nn.functional.normalize(torch.randn(count, 24), dim=1) for count in (150, 170)]
    save_file(dict(generated=unit[0], reference=unit[1]), out / "features-unit.safetensors")
    metrics["unit"] = dict(cmmd=reference_metrics.cmmd(*(features.double().numpy() for features in unit)))
    (out / "metrics.json").write_text(json.dumps(metrics))


main()
