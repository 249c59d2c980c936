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


SHAPES = ((32, 64),)


def step_us(steps, shapes=SHAPES, warm_ups=0):
    """Time plain steps: what each computed, waited for its data, and waited for a core."""
    machine, waited = Machine(), {"main": 0.0, "other": 7.0}
    clock = CpuClock(
        lambda: machine.wall_us / 1e6, lambda: machine.computed_us / 1e6, lambda: dict(waited)
    )
    clock.start()
    for computed_us, data_us, core_us, own in steps:
        clock.begin_plain()
        machine.run(computed_us, data_us + core_us)
        waited["main"] += core_us / 1e6
        waited["other"] += core_us / 1e6  # at the same time
        clock.end_plain(own)
        machine.run(70, 5)  # Enplace's own work between two steps
    return clock.timing(warm_ups, shapes)


def test_a_step_is_the_shortest_without_what_other_programs_take():
    busy = [(1800, 0, 90_000, SHAPES), (1900, 0, 580_000, SHAPES), (2500, 0, 0, SHAPES)]
    assert step_us(busy).step_us == pytest.approx(1800)
    assert step_us(busy[1:2]).step_us == pytest.approx(1900)  # a script with three steps


def test_a_step_that_waits_for_its_data_takes_what_it_waits():
    assert step_us([(1000, 9000, 500, SHAPES)] * 2).step_us == pytest.approx(10_000)


def test_steps_on_other_shapes_do_not_count():
    steps = [(100, 0, 0, ((1, 64),)), (2000, 0, 0, SHAPES), (100, 0, 0, ((1, 64),))]
    found = step_us(steps)
    assert found.step_us == pytest.approx(2000)
    assert found.n_unlike == 2
    assert step_us(steps[:1]).step_us is None


def test_steps_on_batches_of_nearly_the_same_size_count_if_few_are_on_the_same():
    rows = (20, 31, 34, 33, 36, 30, 32, 30, 29, 28, 60)
    found = step_us([(10 * n, 0, 0, ((n, 64),)) for n in rows], warm_ups=1)
    assert (found.n_near, found.n_unlike) == (4, 6)
    assert found.step_times_us == pytest.approx((320, 310, 330, 340, 300))
    assert not step_us([(2000, 0, 0, SHAPES)] * 6 + [(10, 0, 0, ((31, 64),))]).n_near


def test_steps_of_another_kind_do_not_count():
    machine = Machine()
    clock = CpuClock(lambda: machine.wall_us / 1e6, lambda: machine.computed_us / 1e6, dict)
    clock.start()
    for computed_us, kind in ((900, "other"), (2000, "own"), (1900, "own"), (800, "other")):
        clock.begin_plain()
        machine.run(computed_us, 0)
        clock.end_plain(SHAPES, kind)
    found = clock.timing(0, SHAPES, "own")
    assert found.step_times_us == pytest.approx((2000, 1900))
    assert (found.n_others, found.n_unlike) == (2, 0)


def test_an_op_that_waits_for_its_own_threads_takes_what_it_waits():
    assert times_us([(20, 700, 8000)]) == pytest.approx({0: 50, 1: 1100, 2: 13000})
