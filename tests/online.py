"""What the tests of the online mode share: its settings, and what two of its runs must have in
common.
"""

import ranks

STEPS = 24
SETTINGS = {
    "train.global_batch": 14,
    "train.micro_batch": 5,
    "train.phase": [{"resolution": 64, "steps": STEPS}],
    "prepare.crop": "random",
    "online.window": 2,
    "engine.encode.threads": 1,
}


def training(output, scenes, workers, **settings):
    """`tidemill train --mode online` with workers."""
    settings = {**SETTINGS, "source.uri": scenes, **settings}
    return ranks.Supervised(output, workers, settings, ["--mode", "online"])


def assert_same(a, b):
    """Two runs end with the same state, and have seen the same rows."""
    ranks.assert_same(a, b, STEPS)
    assert ranks.losses(a) == ranks.losses(b)
