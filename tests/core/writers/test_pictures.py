"""The SVG and the report: well formed, correct, and small even for large schedules."""

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.writers.conftest import schedule as make_schedule

from enplace.machine import critical_path, simulate
from enplace.names.groups import group_ops
from enplace.pictures.graph_svg import graph_svg
from enplace.pictures.memory_svg import byte_ticks, column_peaks, memory_svg
from enplace.pictures.palette import DEVICES_DARK, DEVICES_LIGHT
from enplace.pictures.timeline_svg import RIGHT, busy_share, ticks_us, timeline_svg
from enplace.pictures.tracks import Track, channel_tracks, lane_tracks
from enplace.text import ms, size
from enplace.values.constraints import Constraints
from enplace.values.problem import Problem
from enplace.values.result import Alternative, Result
from enplace.values.schedule import Schedule
from enplace.values.splits import Split, part_names
from enplace.writers.report import report_html
from problems import cluster_of, plan_of, profile_of

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("which", ["small", "middle", "large"])
def test_the_picture_is_well_formed_and_below_two_megabytes(which, request):
    text = timeline_svg(Result(request.getfixturevalue(which)))
    assert len(text.encode()) < 2_000_000
    assert ElementTree.fromstring(text).tag == f"{SVG}svg"


def test_with_many_devices_omitted_tracks_are_noted():
    text = timeline_svg(Result(make_schedule(20_000, 90)))
    assert len(text.encode()) < 2_000_000
    assert "more lanes, less busy, not drawn" in text
    assert "more channels, less busy, not drawn" in text


def test_a_small_picture_names_every_op(small):
    text = timeline_svg(Result(small))
    tips = [title.text or "" for title in ElementTree.fromstring(text).iter(f"{SVG}title")]
    for name in small.problem.profile.op_names:
        assert any(tip.startswith(f"{name}, ") for tip in tips)


def test_the_timeline_shows_the_step_time_and_the_bound_that_is_known(middle):
    text = timeline_svg(Result(middle, 12_345.0))
    assert f"step time {ms(middle.makespan_us)}" in text
    assert "proven not below 12.3 ms" in text


def test_device_colours_have_dark_variants(small):
    text = timeline_svg(Result(small))
    assert len(DEVICES_LIGHT) == len(DEVICES_DARK)
    assert "prefers-color-scheme:dark" in text
    assert all(colour in text for colour in (*DEVICES_LIGHT, *DEVICES_DARK))


def test_tracks_contain_every_op_and_transfer(middle):
    lanes, channels = lane_tracks(middle), channel_tracks(middle)
    assert sorted(np.concatenate([t.numbers for t in lanes])) == list(range(500))
    sent = set(np.concatenate([t.numbers for t in channels]).tolist())
    assert sent == set(range(len(middle.transfer_tensor)))
    for track in lanes + channels:
        assert (track.start_us[1:] >= track.finish_us[:-1]).all()


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), max_size=20),
    st.integers(1, 40),
    st.floats(0, 5),
)
def test_columns_add_up_to_the_busy_time(gaps, n_columns, rest):
    ends = np.cumsum(np.array(gaps).reshape(-1, 2)).reshape(-1, 2)
    track = Track("t", 0, 0, np.arange(len(gaps)), ends[:, 0], ends[:, 1])
    makespan = float(ends.max(initial=0.0) + rest)
    share = busy_share(track, makespan, n_columns)
    assert ((share >= 0) & (share <= 1)).all()
    assert share.sum() * makespan / n_columns == pytest.approx(track.busy_us, abs=1e-9)


@given(st.floats(1e-3, 1e9))
def test_the_axis_has_six_to_fourteen_ticks(makespan):
    ticks = ticks_us(makespan)
    assert 6 <= len(ticks) <= 14
    assert ticks[0] == 0
    assert ticks[-1] <= makespan * (1 + 1e-9)


def test_column_peaks_keep_the_highest_use(middle):
    for device in range(4):
        peaks = column_peaks(middle, device, 50)
        assert peaks.max() == middle.peak_bytes[device]


class Checker(HTMLParser):
    """Collects tags and checks that they are closed."""

    VOID = frozenset({"meta", "th", "tr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("which", ["small", "middle", "large"])
def test_the_report_needs_no_other_files(which, request):
    text = report_html(Result(request.getfixturevalue(which)))
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert not {"script", "link", "img", "iframe"} & checker.tags
    assert not re.search(r"""(src|href)=|url\(|@import""", text)
    assert "model &lt;b&gt;" in text
    assert "box &amp; &lt;co&gt;" in text


def test_the_report_shows_step_time_bound_and_peaks(middle):
    text = report_html(Result(middle, 12_345.0, "a solver"))
    assert ms(middle.makespan_us) in text
    assert "proven by a solver not below 12.3 ms" in text
    assert all(f"peak {size(int(peak))}" in text for peak in middle.peak_bytes)
    assert "prefers-color-scheme:dark" in text


def test_the_report_names_the_parts_of_open_groups():
    names = [f"layer{i}/{part}/op{n}" for i in range(40) for part in "ab" for n in range(5)]
    problem = Problem(profile_of(dict.fromkeys(names, 10.0)), cluster_of(2))
    schedule = simulate(problem, plan_of(problem, dict.fromkeys(names, 0)))
    assert "layer 0 / a" not in report_html(Result(schedule))
    assert "layer 0 / a" in report_html(Result(schedule, opened=("layer 0",)))


def test_without_a_bound_the_report_claims_none(middle):
    assert "proven" not in report_html(Result(middle))
    assert "left to gain" not in report_html(Result(middle))


def cells(text: str) -> list[tuple[str, ...]]:
    """Return the texts of every row of every table."""
    rows = re.findall(r"<tr>(<td.*?)</tr>", re.sub("<(?!/?t[rd]).*?>", "", text))
    return [tuple(map(unescape, re.findall("<td[^>]*>(.*?)</td>", row))) for row in rows]


def chain(**constraints: Any) -> Schedule:
    """Schedule three layers of forty ops, the third on another GPU."""
    names = [f"layer_{i}/op_{j:02}" for i in range(3) for j in range(40)]
    problem = Problem(
        profile_of(dict.fromkeys(names, 1.0)), cluster_of(2), Constraints(**constraints)
    )
    return simulate(problem, plan_of(problem, {n: p // 80 for p, n in enumerate(names)}))


def test_the_report_names_constraints_as_the_graph_does():
    schedule = chain(
        pins={op: op // 80 for op in range(120)},
        forbidden=frozenset({(op, 1) for op in range(40)}),
        together=((0, 1, 40),),
    )
    assert cells(report_html(Result(schedule)))[2:6] == [
        ("pinned to GPU 0", "layer 0–1 (80 ops)"),
        ("pinned to GPU 1", "layer 2 (40 ops)"),
        ("not on GPU 1", "layer 0 (40 ops)"),
        ("colocated", "layer_0/op_00, layer_0/op_01, layer_1/op_00"),
    ]


def test_the_report_says_what_the_plan_does_why_it_takes_that_long_and_what_was_noted():
    what_if = "what if: links 3.1 ×"
    notes = [("layer 2", "Too slow & alone")]
    text = report_html(Result(chain(), notes=notes, what_if=what_if))
    assert text.count(f", {what_if}") == 4  # the page's title and heading, and the timeline's
    assert "GPU 0 runs layer 0–1." in text
    assert "GPU 1 runs layer 2." in text
    assert "of it is layer 0 on GPU 0; were that free" in text
    assert "<td>layer 2</td><td>Too slow &amp; alone</td>" in text
    assert "bandwidth from row to column" in text


def test_an_op_that_is_also_a_scope_counts_with_the_ops_in_it():
    names = ["w", *(f"w/{letter}" for letter in "abcde"), "x"]
    problem = Problem(
        profile_of(dict.fromkeys(names, 1.0)),
        cluster_of(2),
        Constraints(pins=dict.fromkeys(range(7), 0)),
    )
    text = report_html(Result(simulate(problem, plan_of(problem, dict.fromkeys(names, 0)))))
    assert [row[1] for row in cells(text) if row[0] == "pinned to GPU 0"] == ["w (6 ops)", "x"]


def test_the_report_lists_the_order_that_a_person_wants():
    problem = chain().problem.constrained(before=[(3, 7)])
    schedule = simulate(problem, plan_of(problem, dict.fromkeys(problem.profile.op_names, 0)))
    assert ("in this order", "layer_0/op_03, then layer_0/op_07") in cells(
        report_html(Result(schedule))
    )


def test_the_report_says_which_ops_are_split_and_names_an_order_of_them_once():
    """Each half of a comes before each half of b: one order of two whole ops."""
    splits = tuple(Split(op, "batch", 2) for op in "ab")
    names = [name for op in "ab" for name in part_names(op, 2)]
    free = Problem(profile_of(dict.fromkeys(names, 1.0)), cluster_of(1))
    problem = replace(free.constrained(before=((0, 2), (0, 3), (1, 2), (1, 3))), splits=splits)
    plan = replace(plan_of(problem, dict.fromkeys(names, 0)), splits=splits)
    text = report_html(Result(simulate(problem, plan)))
    found = cells(text)
    assert [row for row in found if row[0] == "in this order"] == [("in this order", "a, then b")]
    assert "Split ops" in text
    assert ("into 2 by batch", "a") in found


def test_the_report_says_that_there_are_no_constraints():
    assert "None: every op was free." in report_html(Result(chain()))


def test_the_report_compares_and_says_what_does_not_fit():
    profile = profile_of({"a": 10.0, "b": 10.0}, temporary={"a": 60, "b": 60}, persistent={"b": 50})
    problem = Problem(profile, cluster_of(2, capacity_bytes=120))
    ours = simulate(problem, plan_of(problem, {"a": 0, "b": 1}))
    roomy = Problem(profile, cluster_of(2))
    slower = simulate(roomy, plan_of(roomy, {"a": 0, "b": 0}))
    unfit = Problem(profile, cluster_of(2, capacity_bytes=100))
    alone = simulate(unfit, plan_of(unfit, {"a": 0, "b": 0}))
    rivals = {"slow <b>": slower, "alone": alone}
    others = {
        name: Alternative(name, each.problem.cluster, each.makespan_us, each.peak_bytes)
        for name, each in rivals.items()
    }
    rows = cells(report_html(Result(ours, references=others)))
    assert [row[0] for row in rows[:3]] == ["this plan", "slow <b>", "alone"]
    assert [row[2] for row in rows[:3]] == ["", "−50.0 %", "does not fit, so it cannot run"]


def test_the_report_says_how_to_apply_the_plan(small):
    text = report_html(Result(small, how_to=[("Copy <this>:", 'enplace.apply("plan.json")')]))
    assert "<div>Copy &lt;this&gt;:</div><pre>enplace.apply(&quot;plan.json&quot;)</pre>" in text
    assert "How to apply it" not in report_html(Result(small))


def test_the_graph_shows_every_group_with_its_devices(middle):
    root = ElementTree.fromstring(graph_svg(middle))
    tips = [title.text or "" for title in root.iter(f"{SVG}title")]
    grouping = group_ops(middle.problem.profile)
    for name in grouping.names:
        assert any(tip.startswith(f"{name}: ") and "GPU" in tip for tip in tips)


def test_pictures_escape_names(small):
    for text in (graph_svg(small), memory_svg(small), timeline_svg(Result(small))):
        assert "<script>" not in text
        ElementTree.fromstring(text)


def test_the_timeline_draws_the_critical_path(small):
    root = ElementTree.fromstring(timeline_svg(Result(small)))
    (line,) = [each for each in root.iter(f"{SVG}path") if each.get("stroke-width") == "1.2"]
    xs = [float(point.split()[0]) for point in re.split("[ML]", line.get("d", ""))[1:]]
    path = critical_path(small)
    assert xs == sorted(xs)
    assert xs[-1] == pytest.approx(RIGHT, abs=0.1)
    assert ms(path.compute_us) in (line.findtext(f"{SVG}title") or "")


def test_memory_has_an_axis_and_the_capacity_where_it_is_near(small):
    profile = profile_of({"a": 10.0}, temporary={"a": 60})
    tight = Problem(profile, cluster_of(1, capacity_bytes=100))
    near = simulate(tight, plan_of(tight, {"a": 0}))
    assert 'class="limit" stroke-width="1.5"' in memory_svg(near)
    assert 'class="limit" stroke-width="1.5"' not in memory_svg(small)
    assert "of 1.0 GiB" in memory_svg(small)


@given(st.integers(1, 1 << 50))
def test_the_memory_axis_has_a_few_equal_steps(highest):
    ticks = byte_ticks(highest)
    assert 2 <= len(ticks) <= 5
    assert len(set(np.diff(ticks))) == 1
    assert ticks[0] == 0
    assert ticks[-1] <= highest
