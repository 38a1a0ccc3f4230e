"""What the tests of own denoisers share: training one, and one that tells what it was called with."""

from pathlib import Path

import ranks
import tidemill
import torch

ASSETS = Path(__file__).resolve().parent.parent / "assets"
STEPS = 10


def settings_of(output, models, settings):
    return {
        **ranks.SETTINGS,
        "output": str(output),
        "models.path": str(models),
        "train.global_batch": 10,
        "train.micro_batch": 6,
        **settings,
    }


def train(output, dataset, models, denoiser=None, **settings):
    ranks.link(output, dataset)
    return tidemill.train(settings_of(output, models, settings), denoiser=denoiser)


class Listening(torch.nn.Conv2d):
    """Keeps what it was called with, and in which mode.

    And whether hooks on its gradients are called.
    """

    def __init__(self):
        super().__init__(4, 4, 3, padding=1)
        self.calls, self.hooks = [], 0
        self.weight.register_post_accumulate_grad_hook(self.hooked)

    def hooked(self, _):
        self.hooks += 1

    def forward(self, sample, timesteps, text):
        self.calls.append((self.training, torch.is_grad_enabled(), len(sample)))
        return super().forward(sample)
