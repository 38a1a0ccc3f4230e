"""Writes the cases of the parity tests: models, inputs and results of diffusers and transformers.

Usage: make_cases.py FOLDER SEED. Every configuration, weight and input is drawn from the seed.
"""

import multiprocessing
import random
import sys
from pathlib import Path

import folders
import networks
import schedules
import torch
import towers
import transformer_networks


def main():
    out, seed = Path(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    # They take as long as all others together.
    unets = multiprocessing.get_context("fork").Process(target=make_unets, args=(rng.randrange(2**32), out))
    unets.start()
    for index in range(12):
        transformer_networks.transformer_case(rng, index, out / "transformer" / f"{index:02}")
    for index in range(12):
        networks.vae_case(rng, index, out / "vae" / f"{index:02}")
        networks.text_case(rng, index, out / "text" / f"{index:02}")
        networks.t5_case(rng, index, out / "t5" / f"{index:02}")
    for index in range(4):
        towers.clip_case(rng, index, out / "clip" / f"{index:02}")
        towers.dinov2_case(rng, index, out / "dinov2" / f"{index:02}")
    schedules.schedule_cases(rng, out / "schedule")
    schedules.flow_cases(rng, out / "flow")
    schedules.dynamic_flow_cases(rng, out / "dynamic-flow")
    schedules.edm_cases(rng, out / "edm")
    schedules.timestep_cases(out / "timesteps")
    schedules.sampler_cases(rng, out / "sampler")
    schedules.guided_cases(rng, out / "guided")
    folders.variants(rng, out / "variants")
    folders.pipeline(rng, out / "pipeline")
    unets.join()
    sys.exit(unets.exitcode)


def make_unets(seed, out):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for index in range(16):
        is_flow, is_xl = index % 4 == 3, index >= 6
        networks.unet_case(rng, index, out / "unet" / f"{index:02}", is_flow, is_xl)


main()
