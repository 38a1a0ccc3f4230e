"""Takes several steps of torch.optim.AdamW on random parameters with random gradients.

Usage: adamw.py FOLDER SEED. Writes run.safetensors and, with the hyper-parameters, run.json.
"""

import json
import random
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

STEPS = 7


def main():
    out, seed = Path(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    torch.manual_seed(seed)
    size = rng.randint(2, 99)
    shapes = [(), (1,), (size,), (size, 37), (3, 5, 3, 3), (70_001,)]
    options = dict(
        lr=10 ** rng.uniform(-5, -1),
        betas=(rng.uniform(0.5, 0.95), rng.uniform(0.9, 0.9999)),
        eps=10 ** rng.uniform(-8, -4),
        weight_decay=rng.uniform(0.0, 0.1),
    )
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    tensors = {f"start.{i}": p.detach().clone() for i, p in enumerate(parameters)}
    optimizer = torch.optim.AdamW(parameters, fused=False, foreach=False, **options)
    for step in range(STEPS):
        for i, parameter in enumerate(parameters):
            # Gradients of all magnitudes, and some zeros.
            gradient = torch.randn(parameter.shape) * 10 ** torch.empty(parameter.shape).uniform_(-6, 1)
            parameter.grad = torch.where(torch.rand(parameter.shape) < 0.1, 0.0, gradient)
            tensors[f"gradient.{step}.{i}"] = parameter.grad.clone()
        optimizer.step()
        for i, parameter in enumerate(parameters):
            tensors[f"parameter.{step}.{i}"] = parameter.detach().clone()
            for moment in ["exp_avg", "exp_avg_sq"]:
                tensors[f"{moment}.{step}.{i}"] = optimizer.state[parameter][moment].clone()
    save_file(tensors, out / "run.safetensors")
    (out / "run.json").write_text(json.dumps(options | {"steps": STEPS, "parameters": len(shapes)}))


main()
