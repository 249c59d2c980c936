from dataclasses import replace

import numpy as np
import pytest
from PySide6.QtWidgets import QLabel, QWidget

from enplace.frameworks.link_fits import link_fits
from enplace.readers.clusters import presets
from enplace.values.measurement import Deviation, Evaluation, MeasuredLink, Measurement
from enplace_studio.frameworks.plots import DeviationPlot, LinkPlot
from enplace_studio.frameworks.profile_facts import deviations, simulated_step_us, step_facts
from enplace_studio.frameworks.profile_page import ProfilePage
from enplace_studio.widgets.column import Column
from enplace_studio.widgets.fact_widgets import Line
from enplace_studio.widgets.theme import theme
from problems import cluster_of, profile_of

SIZES = [4096 * 4**i for i in range(9)]


@pytest.fixture
def profile():
    """Two ops of 10 and 30 µs on one GPU; links of 12 µs and 25 GB/s."""
    made = profile_of({"a": 10, "b": 30}, [("a", "b", 8)])
    link = MeasuredLink(
        source="GPU:0",
        target="GPU:1",
        size_bytes=tuple(SIZES),
        time_us=tuple(12 + 4e-5 * size for size in SIZES),
        b0_us=12.0,
        b1_us_per_byte=4e-5,
        r2=0.9991,
    )
    measured = Measurement(
        cluster=cluster_of(2),
        op_devices={"a": "GPU:0", "b": "GPU:0"},
        op_deviation={"a": 0.1, "b": 0.02},
        links=(link,),
        step_time_us=50.0,
        launch_gap_us=1.5,
    )
    return replace(made, measured=measured)


@pytest.fixture
def page(qtbot):
    def open_page(profile):
        parent = QWidget()
        qtbot.addWidget(parent)
        made = ProfilePage(profile, simulated_step_us(profile), parent)
        made.parent_kept = parent
        return made

    return open_page


def texts(page):
    return " ".join(found.text() for found in page.findChildren(QLabel))


def test_the_deviations_are_sorted_and_weighted(profile):
    found = deviations(profile)
    assert found.deviation.tolist() == [0.02, 0.1]
    assert found.curve(np.ones(2))[1].tolist() == [0, 0.5, 1]
    assert found.curve(found.time_us)[1].tolist() == [0, 0.75, 1]
    assert found.within(found.time_us, 0.5) == 0.02


def test_the_step_is_compared_with_the_simulator(page, profile):
    lines = dict(page(profile).lines)
    assert lines["measured step"] == "0.050 ms"
    assert lines["simulated, as it was placed"] == "0.040 ms, −20.0 %"
    assert lines["launch gap of a kernel, calibrated"] == "1.50 µs"


def test_the_page_plots_the_measurements(page, profile):
    made = page(profile)
    assert made.findChild(DeviationPlot) is not None
    assert made.findChild(LinkPlot) is not None
    (line,) = made.findChildren(Line)
    assert (line.left, line.right) == ("GPU 0 → GPU 1", "0.012 ms + bytes at 25 GB/s, R² 0.999")
    assert "stay within 2.0 %" in texts(made)


def test_the_link_costs_of_logical_cpus_are_called_a_preset(page, profile):
    measured = replace(profile.measured, cluster=presets()["cpu-2"], links=())
    made = page(replace(profile, measured=measured))
    assert made.findChild(LinkPlot) is None
    assert "is a preset, 0.0050 ms + bytes at 10 GB/s" in texts(made)


def test_a_poor_line_fit_is_pointed_out(page, profile):
    (link,) = profile.measured.links
    poor = replace(profile.measured, links=(replace(link, r2=0.6),))
    assert "Poor fit" not in texts(page(profile))
    shown = texts(page(replace(profile, measured=poor)))
    assert "Poor fit (R² below 0.9): GPU 0 → GPU 1." in shown
    assert "profile again" in shown


@pytest.mark.parametrize(
    "measured",
    [
        Measurement(),
        Measurement(op_deviation={"gone": 0.1}, links=()),
        Measurement(op_deviation={"a": float("nan")}, cluster=cluster_of(2)),
    ],
)
def test_a_profile_with_few_measurements_still_opens(page, profile, measured):
    bare = replace(profile, measured=measured)
    assert deviations(bare) is None
    assert link_fits(bare) == []
    assert step_facts(bare, None) == []
    assert "Not measured" in texts(page(bare))


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_draws_in_both_themes(page, profile, dark):
    theme.set_mode("dark" if dark else "light")
    try:
        made = page(profile)
        made.resize(700, 420)
        assert not made.grab().isNull()
    finally:
        theme.set_mode("light")


def test_all_facts_of_an_estimated_profile_fit_the_window(profile, page):
    off = Deviation(mean=0.031, of_sum=0.02, near=0.9, ops=2)
    evaluation = Evaluation(off, off, 1024, (128, 256, 512), devices_used=2, step_time_us=51e3)
    measured = replace(
        profile.measured,
        evaluation=evaluation,
        op_overhead_us=1.2,
        steps=100,
        warm_ups=10,
        framework_version="2.21.0",
    )
    shown = page(replace(profile, measured=measured))
    shown.show()
    column = shown.findChild(Column)
    assert len(shown.lines) == 11
    assert column.widget().width() <= column.viewport().width()
    shown.close()


def test_a_page_with_few_measurements_tells_the_time_by_type_and_is_no_higher_than_that(
    profile, page
):
    bare = replace(profile, op_types=("MatMul", "Add"), measured=Measurement(gpu="NVIDIA H200"))
    made = page(bare)
    assert [(line.left, line.right) for line in made.findChildren(Line)] == [
        ("Add", "0.030 ms, 75.0 %, 1 op"),
        ("MatMul", "0.010 ms, 25.0 %, 1 op"),
    ]
    assert dict(made.lines) == {"measured on": "NVIDIA H200", "ops": "2"}
    assert made.height() < 0.8 * page(profile).height()
    made.show()
    column = made.findChild(Column)
    assert column.widget().height() <= column.viewport().height()
    made.close()
