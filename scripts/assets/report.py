"""Measures the models in assets/ on scenes of other seeds; writes assets/README.md."""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import diffusers
import torch
import transformers

from . import data, judge, text, vae

README = """# The quickstart's tiny frozen models

In the diffusers layout, f16, made by the commands at the head of `scripts/make_assets.py`: seed {seed},
{vae_steps} steps of 16 images for the VAE, {text_steps} steps of 96 captions for the text encoder,
{judge_steps} steps of 128 images for the judge (DINOv2's form; images are compared by its features),
on {threads} thread(s), from 40,000 scenes of seed 1. torch {torch}, diffusers {diffusers},
transformers {transformers}.
The vocabulary is open_clip's copy of CLIP's. `unet/config.json` has no weights beside it: the U-Net is what
a run trains.

| measured on | figure | value |
| --- | --- | --- |
{table}

"Test scenes" are of another seed; "held-out pairs" are scenes of the pairs of colour and shape that neither
model ever saw. Probes are linear maps from the state at the end of the caption, fitted on training captions.
"""


def write(args: argparse.Namespace) -> None:
    rows = [*vae_rows(args), *text_rows(args), *judge_rows(args), size_row(args.out)]
    table = "\n".join(f"| {where} | {what} | {value} |" for where, what, value in rows)
    print(table)
    readme = README.format(
        seed=args.seed,
        threads=args.threads,
        vae_steps=args.vae_steps,
        text_steps=args.text_steps,
        judge_steps=args.judge_steps,
        torch=torch.__version__.split("+")[0],
        diffusers=diffusers.__version__,
        transformers=transformers.__version__,
        table=table,
    )
    (args.out / "README.md").write_text(readme, encoding="utf-8")


def vae_rows(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    model = vae.load(args.out)
    rows = []
    for where, folder in [("test scenes", args.test), ("held-out pairs", args.heldout)]:
        kept = [
            row
            for row in data.rows(folder, ["jpg", "colour", "shape"])
            if data.decode(row["jpg"]) is not None
        ]
        truth = [(row["colour"], row["shape"]) for row in kept]
        images = data.images(folder)
        rows.append((where, "VAE, PSNR", f"{vae.psnr(model, images):.2f} dB"))
        rows.append((where, "checker on the pixels", percent(checked(args.check, images, truth))))
        decoded = vae.reconstruct(model, images)
        rows.append(
            (where, "checker on the VAE's reconstruction", percent(checked(args.check, decoded, truth)))
        )
    with torch.no_grad():
        posterior = model.encode(vae.normalise(data.images(args.test))).latent_dist
        latents = posterior.sample() * model.config.scaling_factor
    rows.append(
        ("test scenes", "scaled latents, mean and deviation", f"{latents.mean():.3f}, {latents.std():.3f}")
    )
    return rows


def checked(checker: Path, images: torch.Tensor, truth: list[tuple[str, str]]) -> float:
    """Share of images [N, 3, 64, 64] in which the checker finds the right colour and shape."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(images.permute(0, 2, 3, 1).contiguous().numpy().tobytes())
        file.flush()
        command = [str(checker), file.name, str(data.RESOLUTION)]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found = [json.loads(line) or {} for line in lines]
    right = [(f.get("colour"), f.get("shape")) == pair for f, pair in zip(found, truth, strict=True)]
    return sum(right) / len(right)


def text_rows(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    probes = [fit_probe(*states_of(args.out, args.train, 4000), attribute) for attribute in range(4)]
    rows = []
    for where, folder in [("test scenes", args.test), ("held-out pairs", args.heldout)]:
        states, classes = states_of(args.out, folder, 2000)
        for attribute, (name, probe) in enumerate(zip(data.ATTRIBUTES, probes, strict=True)):
            right = (states @ probe).argmax(1) == classes[:, attribute]
            rows.append((where, f"text encoder, probe of the {name}", percent(right.float().mean().item())))
    return rows


def judge_rows(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    def states(folder: Path, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        images, classes = data.images_and_classes(folder)
        found = judge.features(args.out, images[:count])
        return torch.cat([found, torch.ones(len(found), 1)], dim=1), classes[:count]

    probes = [fit_probe(*states(args.train, 4000), attribute) for attribute in range(4)]
    rows = []
    for where, folder in [("test scenes", args.test), ("held-out pairs", args.heldout)]:
        found, classes = states(folder, 2000)
        for attribute, (name, probe) in enumerate(zip(data.ATTRIBUTES, probes, strict=True)):
            right = (found @ probe).argmax(1) == classes[:, attribute]
            rows.append((where, f"judge, probe of the {name}", percent(right.float().mean().item())))
    return rows


def states_of(assets: Path, folder: Path, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """States at the end of the captions, with a constant 1 appended: f32 [N, 65].

    And the class numbers.
    """
    texts, classes = data.captions(folder)
    states, ids = text.encode(assets, texts[:count])
    ends = (ids == text.END_ID).float().argmax(1)
    states = states[torch.arange(len(ids)), ends]
    return torch.cat([states, torch.ones(len(states), 1)], dim=1), classes[:count]


def fit_probe(states: torch.Tensor, classes: torch.Tensor, attribute: int) -> torch.Tensor:
    """Ridge regression to one-hot classes: f32 [65, values]."""
    one_hot = torch.nn.functional.one_hot(classes[:, attribute]).float()
    ridge = 1e-3 * len(states) * torch.eye(states.shape[1])
    return torch.linalg.solve(states.T @ states + ridge, states.T @ one_hot)


def size_row(folder: Path) -> tuple[str, str, str]:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return ("disk", "all files", f"{size / 1e6:.2f} MB")


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"
