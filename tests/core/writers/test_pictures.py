"""The SVG and the report: well formed, correct, and small even for large schedules."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.writers.conftest import schedule as make_schedule

from enplace.bounds import lower_bound_us
from enplace.machine import simulate
from enplace.text import ms
from enplace.values.problem import Problem
from enplace.writers.memory_svg import column_peaks
from enplace.writers.palette import DEVICES_DARK, DEVICES_LIGHT
from enplace.writers.report import report_html
from enplace.writers.timeline_svg import busy_share, ticks_us, timeline_svg
from enplace.writers.tracks import Track, channel_tracks, lane_tracks
from problems import cluster_of, plan_of, profile_of

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("which", ["small", "middle", "large"])
def test_the_picture_is_well_formed_and_below_two_megabytes(which, request):
    text = timeline_svg(request.getfixturevalue(which))
    assert len(text.encode()) < 2_000_000
    assert ElementTree.fromstring(text).tag == f"{SVG}svg"


def test_with_many_devices_omitted_tracks_are_noted():
    text = timeline_svg(make_schedule(20_000, 90))
    assert len(text.encode()) < 2_000_000
    assert "more lanes, less busy, not drawn" in text
    assert "more channels, less busy, not drawn" in text


def test_a_small_picture_names_every_op(small):
    text = timeline_svg(small)
    tips = [title.text or "" for title in ElementTree.fromstring(text).iter(f"{SVG}title")]
    for name in small.problem.profile.op_names:
        assert any(tip.startswith(f"{name}, ") for tip in tips)


def test_the_picture_shows_the_step_time_and_the_bound(middle):
    text = timeline_svg(middle)
    assert f"step time {ms(middle.makespan_us)}" in text
    assert f"proven not below {ms(lower_bound_us(middle.problem))}" in text


def test_device_colours_have_dark_variants(small):
    text = timeline_svg(small)
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
    text = report_html(request.getfixturevalue(which))
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert not {"script", "link", "img", "iframe"} & checker.tags
    assert not re.search(r"""(src|href)=|url\(|@import""", text)
    assert "model &lt;b&gt;" in text
    assert "box &amp; &lt;co&gt;" in text


def test_the_report_shows_step_time_bound_and_peaks(middle):
    text = report_html(middle)
    assert ms(middle.makespan_us) in text
    assert f"proven not below {ms(lower_bound_us(middle.problem))}" in text
    assert text.count("peak ") >= 4
    assert "prefers-color-scheme:dark" in text


def test_the_report_sums_pins_up_by_scope():
    names = [f"layer_{i}/op_{j}" for i in range(3) for j in range(40)]
    problem = Problem(
        profile_of(dict.fromkeys(names, 1.0)),
        cluster_of(2),
        pins={op: op // 80 for op in range(120)},
    )
    text = report_html(
        simulate(problem, plan_of(problem, {n: p // 80 for p, n in enumerate(names)}))
    )
    rows = re.findall(r"<td>pinned to (GPU \d)</td><td>(.*?)</td>", text)
    assert rows == [
        ("GPU 0", "layer_0 (40 ops)"),
        ("GPU 0", "layer_1 (40 ops)"),
        ("GPU 1", "layer_2 (40 ops)"),
    ]
