"""The lines on data parallelism and other alternatives below the plans."""

from dataclasses import replace

from PySide6.QtWidgets import QLabel

from documents import document_of
from enplace.placers.data_parallel import mirrored
from enplace.text import ms
from enplace.values.measurement import Measurement
from enplace_studio.views.plans.replicas import Replicas
from enplace_studio.widgets.labels import ElidedLabel
from problems import cluster_of, profile_of

WORK = {"a": 10, "b": 10}


def on_samples(profile):
    """Return a profile whose types say that all ops work on samples."""
    return replace(profile, op_types=("Relu",) * profile.n_ops)


def text_of(lines):
    """What the lines say, with their tooltips."""
    labels = lines.findChildren(QLabel)
    names = (each.whole if isinstance(each, ElidedLabel) else each.text() for each in labels)
    return "\n".join([*names, *(each.toolTip() for each in labels)])


def test_data_parallelism_is_predicted_for_the_open_cluster(opener, qtbot):
    document = document_of(on_samples(profile_of(WORK)), cluster_of(2), {"a": 0, "b": 0})
    lines = opener(Replicas, document, 260, 60)
    step = ms(mirrored(document.problem).step_time_us)
    qtbot.waitUntil(lambda: f"2 replicas\n{step}" in text_of(lines))
    document.set_cluster(cluster_of(1))
    qtbot.waitUntil(lines.isHidden)


def test_replicas_that_do_not_fit_have_no_time(opener, qtbot):
    profile = profile_of(WORK, [("a", "b", 900)], temporary={"a": 80, "b": 80})
    document = document_of(on_samples(profile), cluster_of(2, capacity_bytes=60), {"a": 0, "b": 1})
    lines = opener(Replicas, document, 260, 60)
    document.place([0], 1)
    qtbot.waitUntil(lambda: "does not fit" in text_of(lines))


def test_shares_on_unlike_cards_and_a_missing_prediction_are_said(opener, qtbot):
    cluster = cluster_of(2, speeds=(3.0, 1.0))
    document = document_of(on_samples(profile_of(WORK)), cluster, {"a": 0, "b": 0})
    lines = opener(Replicas, document, 260, 60)
    document.place([0], 1)
    qtbot.waitUntil(lambda: "Best shares of the batch: " in text_of(lines))
    unknown = document_of(profile_of(WORK), cluster, {"a": 0, "b": 0})
    lines = opener(Replicas, unknown, 260, 60)
    unknown.place([0], 1)
    qtbot.waitUntil(lambda: "no op is known to work on samples" in text_of(lines))


def test_what_the_framework_took_by_itself_is_named_as_measured(opener, qtbot):
    measured = Measurement(framework="tensorflow", stock_step_time_us=5100.0, cluster=cluster_of(2))
    profile = replace(on_samples(profile_of(WORK)), measured=measured)
    document = document_of(profile, cluster_of(2), {"a": 0, "b": 0})
    lines = opener(Replicas, document, 260, 60)
    qtbot.waitUntil(lambda: "TensorFlow by itself, measured\n5.1 ms" in text_of(lines))
    assert "For comparison, measured and predicted" in text_of(lines)
    document.set_scale(1.0, 3.1)
    qtbot.waitUntil(lambda: "For comparison, predicted" in text_of(lines))
    assert "measured" not in text_of(lines), "it was not measured at these speeds"
