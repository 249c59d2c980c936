import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from enplace.frameworks.tensorflow.measure.link_fit import fit_line

SIZES = 4.0 ** np.arange(6, 15)


@given(st.floats(0, 1e3), st.floats(1e-5, 1e-2), st.integers(0, 8), st.floats(1, 100))
def test_one_outlier_does_not_change_the_line(b0_us, b1_us_per_byte, stray, factor):
    times_us = b0_us + b1_us_per_byte * SIZES
    found_b0, found_b1, r2 = fit_line(SIZES, times_us)
    np.testing.assert_allclose([found_b0, found_b1], [b0_us, b1_us_per_byte], rtol=1e-6, atol=1e-3)
    assert r2 > 0.999999
    times_us[stray] *= factor
    found_b0, found_b1, _ = fit_line(SIZES, times_us)
    np.testing.assert_allclose(found_b1, b1_us_per_byte, rtol=1e-3)


def test_slow_large_transfers_do_not_hide_the_latency():
    times_us = 150.0 + 7e-4 * SIZES
    times_us[-3:] *= 1.2
    b0_us, _, r2 = fit_line(SIZES, times_us)
    assert 100 < b0_us < 160
    assert r2 > 0.95


def test_fitted_costs_are_never_negative():
    b0_us, b1_us_per_byte, _ = fit_line(SIZES, 5.0 - 1e-9 * SIZES)
    assert b0_us > 0
    assert b1_us_per_byte == 0
