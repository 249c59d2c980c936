"""Pins are a mapping, whatever they are kept as."""

import numpy as np
import pytest

from enplace.errors import ProblemError
from enplace.values.pins import FREE, Pins, as_pins

GIVEN = {3: 1, 0: 0, 4: 1}


def test_pins_are_the_mapping_that_they_were_made_from():
    pins = as_pins(GIVEN, 6, 2)
    assert pins == GIVEN
    assert (len(pins), list(pins), dict(pins)) == (3, [0, 3, 4], GIVEN)
    assert pins.get(1) is None
    assert pins.get(6) is None
    assert -1 not in pins
    assert pins.device.tolist() == [0, FREE, FREE, 1, 1, FREE]


def test_pins_are_equal_if_they_hold_the_same_ops_on_the_same_devices():
    pins = as_pins(GIVEN, 6, 2)
    assert pins == Pins(np.array([0, -1, -1, 1, 1, -1]))
    assert pins != Pins(np.array([0, -1, -1, 1, 0, -1]))
    assert not as_pins({}, 6, 2)


@pytest.mark.parametrize("pins", [{6: 0}, {-1: 0}, {0: 2}, {0: -1}, {0: 10**12}])
def test_a_pin_of_an_op_or_to_a_device_that_does_not_exist_is_refused(pins):
    with pytest.raises(ProblemError, match="does not exist"):
        as_pins(pins, 6, 2)


def test_pins_of_a_larger_cluster_are_refused():
    with pytest.raises(ProblemError, match="device number 1"):
        as_pins(as_pins(GIVEN, 6, 2), 6, 1)
