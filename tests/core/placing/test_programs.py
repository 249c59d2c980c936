"""Work beside a solver of integer programs."""

import threading

import numpy as np

from enplace.placing.programs import repeated_aside
from enplace.placing.stop import Stop


def test_runs_are_offered_where_they_are_taken_and_end_with_the_context():
    third, offered, before = threading.Event(), [], threading.active_count()

    def run(number, ended):
        if number == 3:
            third.set()
            while not ended():
                pass
        return np.array([number])

    with repeated_aside(run, Stop(), offered.append) as take:
        assert third.wait(60)
        assert offered == []
        take()
    assert [found.tolist() for found in offered] == [[1], [2]]
    assert threading.active_count() == before


def test_no_run_begins_once_the_time_is_up():
    with repeated_aside(lambda *_: np.zeros(1), Stop(cancelled=lambda: True), print) as take:
        take()
