import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace_studio.timelines.scale import TimeScale, tick_texts

scales = st.builds(TimeScale.fit, st.floats(1, 1e7), st.floats(50, 3000))


@given(scales, st.floats(0.1, 50), st.floats(0, 1), st.floats(1, 50), st.floats(0, 1))
def test_zooming_in_keeps_the_moment_at_the_pointer(scale, pan, first, factor, second):
    scale = scale.zoomed(4, first * scale.width_px).panned(pan)
    at = second * scale.width_px
    assert scale.zoomed(factor, at).time(at) == pytest.approx(
        scale.time(at), abs=1e-6 * scale.end_us
    )


@given(scales, st.lists(st.tuples(st.floats(0.05, 20), st.floats(-5000, 5000)), max_size=6))
def test_the_window_stays_within_the_step(scale, moves):
    for factor, pixels in moves:
        scale = scale.zoomed(factor, scale.width_px / 3).panned(pixels)
    assert scale.start_us >= 0
    assert scale.stop_us <= scale.end_us * (1 + 1e-9)


@given(scales, st.floats(1, 1e4))
def test_ticks_are_spaced_and_have_different_texts(scale, factor):
    ticks = scale.zoomed(factor, scale.width_px / 2).ticks(90)
    assert len(set(tick_texts(ticks))) == len(ticks)
    assert (np.diff(ticks) >= 89 * scale.us_per_px / factor).all()


def test_a_full_view_stays_full_when_the_step_gets_longer():
    assert TimeScale.fit(100, 500).resized(300, 800) == TimeScale.fit(300, 800)


def test_a_close_view_stays_where_it_is_when_the_pane_is_resized():
    close = TimeScale.fit(1000, 500).zoomed(10, 250)
    wider = close.resized(1000, 600)
    assert (wider.start_us, wider.us_per_px) == (close.start_us, close.us_per_px)


def test_an_interval_is_shown_with_space_around_it():
    scale = TimeScale.fit(1000, 500).around(400, 500)
    assert scale.x(400) == pytest.approx(500 / 12)
    assert scale.x(500) == pytest.approx(500 * 11 / 12)


def test_ticks_are_in_ms():
    assert tick_texts(np.array([0.0, 25_000.0])) == ["0 ms", "25 ms"]
    assert tick_texts(np.array([0.0, 2_500.0, 5_000.0])) == ["0.0 ms", "2.5 ms", "5.0 ms"]
    assert tick_texts(np.array([0.0, 2_000_000.0])) == ["0 ms", "2,000 ms"]
