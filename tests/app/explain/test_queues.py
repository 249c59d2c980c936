import numpy as np

from documents import document_of, wide_document
from enplace.names.groups import group_ops
from enplace_studio.explain.queues import (
    describe_queue,
    describe_wait,
    find_queue,
    find_wait,
    requested_us,
)
from problems import cluster_of, profile_of


def queueing():
    """One switch: a sends to x, y and z, 51 µs each, all requested at 10 µs."""
    profile = profile_of(
        {"a": 10, "x": 1, "y": 1, "z": 1}, [("a", "x", 50), ("a", "y", 50), ("a", "z", 50)]
    )
    places = {"a": 0, "x": 1, "y": 2, "z": 3}
    return document_of(profile, cluster_of(4, shared=True), places)


def test_the_depth_of_a_queue_is_how_many_wait():
    schedule = queueing().schedule
    queue, waited_us = find_queue(schedule, np.arange(3))
    assert queue.most == 2
    assert waited_us == 51 + 102
    at = np.searchsorted(queue.time_us, [5, 30, 70, 120], side="right") - 1
    assert queue.depth[at].tolist() == [0, 2, 1, 0]


def test_a_transfer_knows_whom_it_waits_for_and_who_waits_for_it():
    schedule = queueing().schedule
    first, second, third = np.argsort(schedule.transfer_start_us).tolist()
    wait = find_wait(schedule, second)
    assert (wait.requested_us, wait.start_us) == (10, 61)
    assert wait.behind.tolist() == [first]
    assert wait.held_up.tolist() == [third]
    assert sorted(find_wait(schedule, third).behind.tolist()) == sorted([first, second])
    assert not len(find_wait(schedule, first).behind)


def test_waits_are_told_in_words():
    document = queueing()
    schedule, grouping = document.schedule, group_ops(document.problem.profile)
    third = int(np.argmax(schedule.transfer_start_us))
    assert describe_wait(schedule, grouping, find_wait(schedule, third)) == [
        "50 B of a at 0.11 ms waits 0.10 ms",
        "behind 2, such as 50 B of a (0.051 ms)",
    ]
    told = describe_queue(schedule, grouping, np.arange(3), 30.0)
    assert told.splitlines() == ["2 transfers wait at 0.030 ms", "50 B of a", "50 B of a"]


def test_behind_whom_one_waits_explains_all_of_the_wait_on_one_channel():
    schedule = wide_document(200, 4).schedule
    asked_us = requested_us(schedule)
    for transfer in range(0, len(asked_us), 7):
        wait = find_wait(schedule, transfer)
        assert wait.length_us >= 0
        assert wait.behind_us.sum() >= wait.length_us - 1e-6  # each channel is busy all the time
