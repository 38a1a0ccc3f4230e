"""Training of the user's own denoiser, and a denoiser that records its calls."""

import tidemill
import torch

from helpers import training

STEPS = 10


def denoiser_settings(output, models, settings):
    """The settings of a run with micro-batches of unequal size."""
    return {
        **training.SETTINGS,
        "output": str(output),
        "models.path": str(models),
        "train.global_batch": 10,
        "train.micro_batch": 6,
        **settings,
    }


def train_denoiser(output, dataset, models, denoiser=None, **settings):
    """Trains in this process; without a denoiser the U-Net of the models."""
    training.link_dataset(output, dataset)
    return tidemill.train(denoiser_settings(output, models, settings), denoiser=denoiser)


class RecordingDenoiser(torch.nn.Conv2d):
    """Records its mode and batch size in each call, and counts calls of its gradient hook."""

    def __init__(self):
        super().__init__(4, 4, 3, padding=1)
        self.calls, self.hooks = [], 0
        self.weight.register_post_accumulate_grad_hook(self.count_hook)

    def count_hook(self, _):
        self.hooks += 1

    def forward(self, sample, timesteps, text):
        self.calls.append((self.training, torch.is_grad_enabled(), len(sample)))
        return super().forward(sample)
