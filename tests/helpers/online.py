"""Training in the mode "online": settings, and what two of its runs must have in common."""

from helpers import processes, run_output, training

STEPS = 24
SETTINGS = {
    **training.UNEVEN_BATCH,
    **training.phase(STEPS),
    "prepare.crop": "random",
    "online.window": 2,
}


def start_training(output, scenes, workers, **settings):
    """Starts `tidemill train --mode online` with workers."""
    settings = {**SETTINGS, "source.uri": scenes, **settings}
    return processes.SupervisedTraining(output, workers, settings, ["--mode", "online"])


def assert_same_training(a, b):
    """Two runs end with the same state, and have seen the same rows."""
    run_output.assert_same_state(a, b, STEPS)
    assert run_output.read_losses(a) == run_output.read_losses(b)
