"""When the feeder of encoders gives one back."""

import pytest
from tidemill.ray import feeder


@pytest.mark.parametrize(
    ("working", "others", "fits"),
    [
        # How many have had units, half of the time each; how many would be left; whether they would do.
        ((3, 1), 3, True),
        ((4, 2), 3, False),
        ((4, 3), 4, True),
        ((4, 4), 4, False),
        ((1, 0), 1, True),
        ((1, 1), 1, False),
    ],
)
def test_encoders_are_given_back_when_fewer_would_do(working, others, fits, monkeypatch):
    now = 100.0
    monkeypatch.setattr(feeder.time, "monotonic", lambda: now)
    load = feeder._Load()
    for busy in working * 10:
        load.count(busy)
        assert not load.fits(100), "too soon to say"
        now += feeder.IDLE_S / 20
    assert load.fits(others) == fits
    # Judged once; then a new while begins.
    assert not load.fits(100)
