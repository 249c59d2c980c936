"""The line on data parallelism below the plans."""

from documents import document_of
from enplace.placers.data_parallel import mirrored
from enplace.text import ms
from enplace_studio.views.plans.replicas import ReplicasLine
from problems import cluster_of, profile_of

WORK = {"a": 10, "b": 10}


def test_data_parallelism_is_predicted_for_the_open_cluster(opener, qtbot):
    document = document_of(profile_of(WORK), cluster_of(2), {"a": 0, "b": 0})
    line = opener(ReplicasLine, document, 260, 60)
    document.place([0], 1)
    step = ms(mirrored(document.problem).step_time_us)
    qtbot.waitUntil(lambda: f"2 replicas: {step} per step" in line.text())
    document.place([0], 0)
    document.set_cluster(cluster_of(1))
    qtbot.waitUntil(line.isHidden)


def test_replicas_that_do_not_fit_have_no_time(opener, qtbot):
    profile = profile_of(WORK, [("a", "b", 90)], temporary={"a": 80, "b": 80})
    document = document_of(profile, cluster_of(2, capacity_bytes=60), {"a": 0, "b": 1})
    line = opener(ReplicasLine, document, 260, 60)
    document.place([0], 1)
    qtbot.waitUntil(lambda: "does not fit" in line.text())
