"""The times of ops on a CPU, by a clock of the test."""

import pytest

pytest.importorskip("torch")

from enplace.frameworks.torch.record.timing import CpuClock

WORK_US = {0: 30.0, 1: 400.0, 2: 5000.0}


class Machine:
    """Passes time on the wall, and computes during some of it."""

    def __init__(self):
        self.wall_us = self.computed_us = 0.0

    def run(self, computed_us, waited_us):
        self.wall_us += computed_us + waited_us
        self.computed_us += computed_us


def times_us(recordings):
    """Record steps of three ops; of each recording, how long another program ran in each."""
    machine = Machine()
    clock = CpuClock(lambda: machine.wall_us / 1e6, lambda: machine.computed_us / 1e6)
    for waited_us in recordings:
        clock.start()
        for call, work_us in WORK_US.items():
            clock.begin(call)
            machine.run(work_us, waited_us[call])
            clock.end(call)
    return clock.timing(0).call_us


@pytest.mark.parametrize(
    "recordings",
    [
        [(0, 0, 0)],
        [(90_000, 0, 0)],  # one recording, and a turn of another program within an op
        [(0, 30_000, 40_000)],
        [(900, 0, 9000), (0, 700, 0), (0, 0, 800)],  # short waits, elsewhere in each recording
        [(900, 90_000, 9000), (0, 0, 4_000_000)],
    ],
)
def test_what_other_programs_take_is_no_time_of_an_op(recordings):
    assert times_us(recordings) == pytest.approx(WORK_US)


def test_an_op_that_waits_for_its_own_threads_takes_what_it_waits():
    assert times_us([(20, 700, 8000)]) == pytest.approx({0: 50, 1: 1100, 2: 13000})
