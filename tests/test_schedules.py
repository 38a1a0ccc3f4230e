"""Learning rate schedules and weight averaging, compared with diffusers."""

import numpy as np
import pytest
import tidemill
import torch
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from helpers import run_output, training

STEPS = 12


def train(output, dataset, steps=STEPS, **settings):
    training.link_dataset(output, dataset)
    few = {**training.phase(steps), "train.global_batch": 4, "train.micro_batch": 4}
    tidemill.train({**training.SETTINGS, "output": str(output), **few, **settings})


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_learning_rate_schedules_match_diffusers(schedule, dataset, tmp_path):
    """Tidemill's warm-up begins with the first step, that of diffusers with the second."""
    warmup = 4
    train(tmp_path, dataset, **{"train.schedule": schedule, "train.warmup_steps": warmup})
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    scheduler = get_scheduler(schedule, optimizer, num_warmup_steps=warmup, num_training_steps=STEPS)
    theirs = []
    for _ in range(STEPS):
        theirs.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    ours = [line["learning_rate"] for line in run_output.read_metrics(tmp_path)]
    np.testing.assert_allclose(ours[warmup:], theirs[warmup:], rtol=1e-6)
    np.testing.assert_allclose(ours[:warmup], theirs[1 : warmup + 1], rtol=1e-6)
    assert max(ours) == pytest.approx(1e-3)


def test_ema_matches_diffusers(dataset, tmp_path):
    start, decay = 3, 0.4
    averaged = torch.nn.Parameter(torch.zeros(0))
    theirs = EMAModel([averaged], decay=decay, update_after_step=start)
    for step in range(1, STEPS + 1):
        # The last step of a run always has a checkpoint.
        train(tmp_path, dataset, step, **{"train.ema": {"decay": decay, "start_step": start}})
        state = run_output.read_state(tmp_path, step)
        averaged.data = torch.from_numpy(state["master"])
        if step == 1:
            theirs.shadow_params = [averaged.data.clone()]
        theirs.step([averaged])
        assert ("ema" in state) == (step > start)
        if step > start:
            np.testing.assert_allclose(state["ema"], theirs.shadow_params[0], rtol=1e-5, atol=1e-7)
