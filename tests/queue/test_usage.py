"""Integrals of use against a plain sum over small steps, and across checkpoints."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairslice.fairshare import PoolWeight, dominant_share
from fairslice_queue.usage import Meter, Reading

_STEPS = st.lists(
    st.tuples(st.floats(0.0, 50_000.0), st.integers(0, 64_000)), min_size=1, max_size=12
)


def _plainly(steps: list[tuple[float, int]], end: float, half_life: float) -> tuple[float, float]:
    """Sum milli-GPU-seconds, each second weighed by its age at the end."""
    total = decayed = 0.0
    bounds = [*(start for start, _ in steps[1:]), end]
    for (start, milli), stop in zip(steps, bounds, strict=True):
        total += milli * (stop - start)
        pieces = 400
        width = (stop - start) / pieces
        for piece in range(pieces):
            middle = start + (piece + 0.5) * width
            decayed += milli * width * 0.5 ** ((end - middle) / half_life)
    return total, decayed


@settings(max_examples=60, deadline=None)
@given(_STEPS, st.sampled_from([3600.0, 604_800.0]))
def test_use_is_the_integral_of_what_was_held(
    gaps: list[tuple[float, int]], half_life: float
) -> None:
    meter, now, steps = Meter(half_life), 1000.0, []
    for gap, milli in gaps:
        meter.hold("cv", "a100", milli, now)
        steps.append((now, milli))
        now += gap
    reading = meter.read("cv", "a100", now)
    total, decayed = _plainly(steps, now, half_life)
    assert reading.total == pytest.approx(total, rel=1e-9, abs=1e-3)
    assert reading.decayed == pytest.approx(decayed, rel=1e-3, abs=1.0)


@given(_STEPS, st.lists(st.floats(0, 1), max_size=5))
def test_reading_changes_nothing(gaps: list[tuple[float, int]], looks: list[float]) -> None:
    looked, left_alone, now = Meter(7200.0), Meter(7200.0), 0.0
    for gap, milli in gaps:
        for meter in (looked, left_alone):
            meter.hold("cv", "a100", milli, now)
        for part in sorted(looks):
            looked.read("cv", "a100", now + part * gap)
        now += gap
    one, other = looked.read("cv", "a100", now), left_alone.read("cv", "a100", now)
    assert one == other


@given(st.integers(1, 8000), st.integers(1, 500), st.integers(1, 499))
def test_a_span_may_be_cut_anywhere(milli: int, length: int, cut: int) -> None:
    whole, parts = Meter(100.0), Meter(100.0)
    whole.hold("cv", "a100", milli, 0.0)
    parts.hold("cv", "a100", milli, 0.0)
    parts.hold("cv", "a100", milli, float(min(cut, length)))
    one, other = (meter.read("cv", "a100", float(length)) for meter in (whole, parts))
    assert other.decayed == pytest.approx(one.decayed, rel=1e-9)
    assert other.total == one.total


def test_holding_a_whole_pool_for_ever_is_a_share_of_one() -> None:
    half_life, pools = 100.0, {"a100": PoolWeight(capacity=8000)}
    meter = Meter(half_life)
    meter.hold("cv", "a100", 8000, 0.0)
    use = {"a100": meter.read("cv", "a100", 100 * half_life).decayed, "gone": 1e9}
    assert dominant_share(use, pools, 1, half_life) == pytest.approx(1.0)
    assert dominant_share(use, pools, 4, half_life) == pytest.approx(0.25)


def test_centuries_of_idleness_do_not_overflow() -> None:
    meter = Meter(100.0)
    meter.hold("cv", "a100", 1000, 0.0)
    meter.hold("cv", "a100", 0, 10.0)
    assert meter.read("cv", "a100", 1e12).decayed == pytest.approx(0.0)


def test_half_is_left_after_a_half_life() -> None:
    meter = Meter(100.0)
    meter.hold("cv", "a100", 1000, 0.0)
    meter.hold("cv", "a100", 0, 10.0)
    before = meter.read("cv", "a100", 10.0)
    after = meter.read("cv", "a100", 110.0)
    assert after.decayed == pytest.approx(before.decayed / 2)
    assert after.total == before.total == 10_000


def test_without_a_half_life_nothing_fades() -> None:
    meter = Meter(0.0)
    meter.hold("cv", "a100", 1000, 0.0)
    meter.hold("cv", "a100", 0, 10.0)
    assert meter.read("cv", "a100", 1e9).decayed == 10_000


def test_a_new_half_life_counts_from_when_it_was_set() -> None:
    meter = Meter(100.0)
    meter.hold("cv", "a100", 1000, 0.0)
    meter.hold("cv", "a100", 0, 10.0)
    meter.use_half_life(50.0, 110.0)
    assert meter.read("cv", "a100", 160.0).decayed == pytest.approx(
        meter.read("cv", "a100", 110.0).decayed / 2
    )


def test_a_clock_set_back_takes_nothing_away() -> None:
    meter = Meter(100.0)
    meter.hold("cv", "a100", 1000, 100.0)
    meter.hold("cv", "a100", 2000, 110.0)
    meter.hold("cv", "a100", 1000, 90.0)
    assert meter.read("cv", "a100", 110.0).total == 10_000
    assert meter.read("cv", "a100", 120.0).total == 20_000


def test_use_since_a_checkpoint_is_added_once_it_is_known_what_is_held() -> None:
    meter = Meter(math.inf)
    meter.restore("cv", "a100", Reading(5000.0, 4000.0, 100.0))
    assert meter.read("cv", "a100", 130.0).total == 5000.0
    meter.hold("cv", "a100", 1000, 110.0)
    assert meter.read("cv", "a100", 120.0).total == 5000.0 + 20 * 1000


def test_a_standby_that_takes_over_goes_on_counting_what_is_held() -> None:
    meter = Meter(math.inf)
    meter.hold("cv", "a100", 2000, 50.0)
    meter.restore("cv", "a100", Reading(9000.0, 9000.0, 100.0))
    assert meter.read("cv", "a100", 110.0).total == 9000.0 + 10 * 2000
