"""Autoscaling of the encoder pool: how far it prepares ahead, and when its size changes."""

import pytest
from tidemill.ray.online import autoscaling


@pytest.mark.parametrize(
    ("prepare_s", "encode_s", "encoders", "ahead"),
    [
        # Seconds for a unit in each stage, number of encoders, expected units ready or in work.
        (None, None, 1, 2),
        (1.0, None, 3, 6),
        (0.0, 1.0, 4, 4),
        (0.8, 1.0, 4, 8),
        (8.0, 1.0, 1, 11),
        (8.0, 1.0, 0, 11),
        (8.0, 0.0, 2, 2 + 2 * autoscaling.MAX_PREPARING_PER_ENCODER),
    ],
)
def test_prefetch_keeps_encoders_busy(prepare_s, encode_s, encoders, ahead):
    times = autoscaling.StageTimes()
    for _ in range(3):
        if prepare_s is not None:
            times.add_prepare_time(prepare_s)
        if encode_s is not None:
            times.add_encode_time(encode_s)
    assert times.compute_prefetch(encoders) == ahead


def test_stage_times_are_running_averages():
    times = autoscaling.StageTimes()
    times.add_prepare_time(1.0)
    times.add_prepare_time(2.0)
    assert times.prepare_s == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("ready", "units", "lasts"),
    [
        # Ready units, units that each encoder has, whether this is a backlog.
        (1, (), True),
        (0, (), False),
        (1, (2,), True),
        (1, (1,), False),
        (2, (1,), True),
        (2, (2, 2), True),
        (1, (2, 2), False),
        (3, (2, 1), True),
        (2, (2, 1), False),
    ],
)
def test_lasting_backlog_adds_encoder(ready, units, lasts, monkeypatch):
    now = 50.0
    monkeypatch.setattr(autoscaling.time, "monotonic", lambda: now)
    backlog = autoscaling.Backlog()
    assert backlog.is_lasting(ready, units, 0.0) == lasts
    assert not autoscaling.Backlog().is_lasting(ready, units, 2.0)
    assert not backlog.is_lasting(ready, units, 2.0)
    now += 2.0
    assert backlog.is_lasting(ready, units, 2.0) == lasts
    # A moment without a backlog restarts the measurement.
    assert not backlog.is_lasting(0, units, 2.0)
    assert not backlog.is_lasting(ready, units, 2.0)


@pytest.mark.parametrize(
    ("working", "remaining", "suffices"),
    [
        # Busy encoders in each half of the time, remaining encoders, whether they would suffice.
        ((3, 1), 3, True),
        ((4, 2), 3, False),
        ((4, 3), 4, True),
        ((4, 4), 4, False),
        ((1, 0), 1, True),
        ((1, 1), 1, False),
    ],
)
def test_low_utilisation_removes_encoder(working, remaining, suffices, monkeypatch):
    now = 100.0
    monkeypatch.setattr(autoscaling.time, "monotonic", lambda: now)
    utilisation = autoscaling.Utilisation()
    for busy in working * 10:
        utilisation.set_busy(busy)
        assert not utilisation.would_suffice(100), "the measurement is too short"
        now += autoscaling.MEASURE_S / 20
    assert utilisation.would_suffice(remaining) == suffices
    # After a judgement a new measurement begins.
    assert not utilisation.would_suffice(100)
