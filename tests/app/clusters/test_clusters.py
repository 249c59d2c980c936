import json
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractItemDelegate, QComboBox, QFileDialog

from enplace.errors import EnplaceError
from enplace.readers.clusters import presets
from enplace.values.cluster_variants import with_gpus
from enplace.writers.clusters import cluster_to_json
from enplace_studio.clusters.editor import ChannelBoxes, ClusterEditor, _link_row
from enplace_studio.clusters.link_patterns import compress, expand, from_words, in_words
from enplace_studio.clusters.picker import FAMILIES, ClusterChooser
from enplace_studio.explain.cluster_facts import (
    bandwidth_text,
    cluster_title,
    devices_text,
    draw_topology,
    family,
    memory_text,
)
from problems import cluster_of, profile_of
from stops import nameless_stops


def shown(chooser):
    return [row.data.name if row.data else row.title for row in chooser.search.rows]


@pytest.fixture
def editor(qtbot):
    made = ClusterEditor(presets()["pesto"])
    qtbot.addWidget(made)
    return made


def test_the_chooser_lists_every_preset_under_a_heading_and_marks_the_current(qtbot):
    chooser = ClusterChooser(profile_of({"a": 1}), presets()["celeritas"])
    qtbot.addWidget(chooser)
    for cluster in presets().values():
        assert cluster.name in shown(chooser)
    chooser.accept()
    assert chooser.chosen is presets()["celeritas"]


def test_all_stops_of_the_chooser_and_the_editor_have_names(qtbot, editor):
    chooser = ClusterChooser(profile_of({"a": 1}), presets()["celeritas"])
    qtbot.addWidget(chooser)
    for dialog in (chooser, editor):
        dialog.show()
        assert not nameless_stops(dialog)


def test_a_custom_cluster_stays_in_the_list(qtbot):
    own = cluster_of(2)
    chooser = ClusterChooser(profile_of({"a": 1}), own)
    qtbot.addWidget(chooser)
    assert chooser.search.current is own


def test_headings_cannot_be_chosen(qtbot):
    chooser = ClusterChooser(profile_of({"a": 1}), presets()["pesto"])
    qtbot.addWidget(chooser)
    assert chooser.search.list.item(0).flags() == Qt.ItemFlag.NoItemFlags


def test_typing_finds_clusters_by_name_and_description(qtbot):
    chooser = ClusterChooser(profile_of({"a": 1}), presets()["pesto"])
    qtbot.addWidget(chooser)
    QTest.keyClicks(chooser.search.field, "8 h200")
    assert shown(chooser) == ["NVLink servers", "h200-8-nvlink"]
    assert chooser.search.rows[0].columns == ("Devices", "Memory", "Links")
    assert chooser.search.rows[1].columns == ("8 GPUs", "140 GiB", "360 GB/s")
    QTest.keyClick(chooser.search.field, Qt.Key.Key_Return)
    assert chooser.chosen is presets()["h200-8-nvlink"]


def test_a_file_that_is_no_cluster_is_refused_with_the_reason(qtbot, monkeypatch, tmp_path):
    path = tmp_path / "c.json"
    path.write_text("{")
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (str(path), ""))
    chooser = ClusterChooser(profile_of({"a": 1}), presets()["pesto"])
    qtbot.addWidget(chooser)
    chooser._from_file()
    assert "c.json" in chooser._fault.text()
    assert chooser.chosen is None


def test_facts_of_unlike_devices_are_ranges():
    two_servers = presets()["fastt-2x8"]
    assert devices_text(two_servers) == "16 GPUs"
    assert bandwidth_text(two_servers) == "12.5–48.2 GB/s"
    pesto = presets()["pesto"]
    small = replace(pesto.devices[0], capacity_bytes=8 << 30)
    assert memory_text(replace(pesto, devices=(small, *pesto.devices[1:]))) == "8.0–16.0 GiB"
    assert bandwidth_text(cluster_of(1)) == "none"
    assert {family(cluster) for cluster in presets().values()} == set(FAMILIES)


def drawn(name):
    """The labels of what is shared, and the lines by the labels of their ends."""
    drawing = draw_topology(presets()[name])
    lines = {(drawing.spots[a.start].label, drawing.spots[a.end].label) for a in drawing.lines}
    return [spot.label for spot in drawing.spots if spot.device is None], lines


def test_a_link_of_two_devices_is_a_line():
    assert drawn("a100-2-nvlink") == ([], {("0", "1")})
    assert len(drawn("h100-8-nvlink")[1]) == 28


def test_a_bus_is_drawn_once_with_a_line_to_each_gpu():
    shared, lines = drawn("pcie-4")
    assert shared == ["host bridge"]
    assert lines == {(str(gpu), "host bridge") for gpu in range(4)}


def test_a_half_duplex_port_is_no_bus():
    shared, lines = drawn("baechi")
    assert shared == []
    assert len(lines) == 6


def test_pairs_that_go_over_the_links_of_others_are_not_drawn():
    _, lines = drawn("fastt")
    assert ("0", "4") in lines
    assert ("0", "5") not in lines


def test_two_servers_meet_in_their_network_and_stand_side_by_side():
    drawing = draw_topology(presets()["fastt-2x8"])
    hub = next(at for at, spot in enumerate(drawing.spots) if spot.device is None)
    slow = [line for line in drawing.lines if line.end == hub]
    assert len(slow) == 16
    assert all(line.share < 0.3 for line in slow)
    assert all((spot.x < 0.5) == (spot.device < 8) for spot in drawing.spots[:hub])


@pytest.mark.parametrize("name", presets())
def test_spots_of_a_drawing_lie_inside_it_and_apart(name):
    spots = draw_topology(presets()[name]).spots
    assert all(0 <= spot.x <= 1 and 0 <= spot.y <= 1 for spot in spots)
    assert len({(round(spot.x, 3), round(spot.y, 3)) for spot in spots}) == len(spots)


def test_a_cluster_with_very_many_gpus_is_not_drawn():
    assert draw_topology(cluster_of(33)).spots == ()


@pytest.mark.parametrize("name", presets())
def test_a_title_is_short_and_gives_the_number_of_devices(name):
    title = cluster_title(presets()[name])
    assert len(title) < 60
    assert title[0].isdigit() or title.startswith("Two servers")


@pytest.mark.parametrize("name", presets())
def test_the_editor_returns_an_unchanged_cluster(qtbot, name):
    given = presets()[name]
    editor = ClusterEditor(given)
    qtbot.addWidget(editor)
    got = editor.read()
    assert got.devices == given.devices
    for a, b in zip(got.links, given.links, strict=True):
        assert (a.source, a.target) == (b.source, b.target)
        assert a.b0_us == pytest.approx(b.b0_us)
        assert a.b1_us_per_byte == pytest.approx(b.b1_us_per_byte, rel=1e-9)
        assert [got.channels[c] for c in a.channels] == [given.channels[c] for c in b.channels]


def test_the_editor_gives_a_device_a_reserve(editor):
    memory = editor.read().devices[0].memory_bytes
    editor.devices.item(0, 3).setText("1")
    device = editor.read().devices[0]
    assert (device.reserve_bytes, device.memory_bytes) == (2**20, memory)
    editor.show_cluster(editor.read())
    assert editor.devices.item(0, 3).text() == "1"
    assert editor.read().devices[0].model == "v100"


def test_devices_are_added_with_their_links_and_removed_with_them(editor):
    editor.add_device()
    bigger = editor.read()
    assert bigger.n_devices == 4
    editor.remove_device()
    assert editor.read().n_devices == 3


@pytest.mark.parametrize(
    ("table", "column", "text", "complaint"),
    [
        ("devices", 1, "tpu", "tpu"),
        ("devices", 2, "much", "memory must be a number"),
        ("devices", 2, "-5", "device 'GPU:0': memory must be a number above 0, not '-5'"),
        ("links", 2, "nan", "latency must be a number of 0 or more"),
        ("devices", 0, "GPU:1", "unique"),
        ("devices", 3, "1e9", "leaves nothing"),
        ("links", 3, "0", "bandwidth must be a number above 0"),
        ("links", 4, "", "channel"),
    ],
)
def test_an_error_is_shown_and_the_editor_stays_open(editor, table, column, text, complaint):
    getattr(editor, table).item(0, column).setText(text)
    editor.show()
    editor.accept()
    assert complaint in editor._fault.text()
    assert editor.isVisible()
    editor.close()


def test_alike_links_are_one_line_and_a_later_line_overrides_it(qtbot):
    editor = ClusterEditor(presets()["a100-8-nvlink"])
    qtbot.addWidget(editor)
    lines = [editor.links.item(row, 0).text() for row in range(editor.links.rowCount())]
    assert lines == ["every GPU", "every GPU", "every CPU"]
    editor.add_line()
    for column, text in enumerate(("GPU:0", "every GPU", "20", "100", "one out of each device")):
        editor.links.item(3, column).setText(text)
    links = {(link.source, link.target): link for link in editor.read().links}
    assert links[0, 1].b0_us == links[0, 7].b0_us == 20
    assert links[0, 1].channels == links[0, 7].channels
    assert links[1, 0].b0_us == 10
    editor.remove_line()
    assert len(editor.read().channels) == 72
    editor.links.selectRow(1)
    editor.link_all_alike()
    assert editor.links.rowCount() == 1
    assert {(link.b0_us, len(link.channels)) for link in editor.read().links} == {(8.0, 1)}


def test_a_device_added_to_a_pattern_needs_no_line_of_its_own(qtbot):
    editor = ClusterEditor(presets()["cpu-4"])
    qtbot.addWidget(editor)
    editor.add_device()
    assert editor.links.rowCount() == 1
    assert editor.read().n_devices == 5


def test_a_link_of_a_device_with_itself_or_with_none_is_refused(editor):
    editor.add_line()
    row = editor.links.rowCount() - 1
    for names in (("GPU:0", "GPU:0"), ("GPU:0", "GPU:9")):
        for column, name in enumerate(names):
            editor.links.item(row, column).setText(name)
        with pytest.raises(EnplaceError):
            editor.read()


@pytest.mark.parametrize("name", presets())
def test_patterns_stand_for_the_very_same_links(name):
    data = cluster_to_json(presets()[name])
    names = [device["name"] for device in data["devices"]]
    rows = [_link_row(link) for link in data["links"]]
    short = compress(rows, names)
    assert expand(short, names) == rows
    words = [in_words(row) for row in short]
    assert [from_words(row) for row in words] == short
    assert not [text for row in words for text in row if "{" in text or "*" in text]
    assert len(short) < len(rows)


def test_an_exported_cluster_can_be_imported(editor, monkeypatch, tmp_path):
    path = tmp_path / "c.json"
    for method in ("getSaveFileName", "getOpenFileName"):
        monkeypatch.setattr(QFileDialog, method, lambda *_: (str(path), ""))
    editor.name.setText("mine")
    editor._export()
    assert json.loads(path.read_text())["name"] == "mine"
    path.write_text(json.dumps(cluster_to_json(cluster_of(4))))
    editor._import()
    assert editor.read().n_devices == 4
    path.write_text("{")
    editor._import()
    assert "c.json" in editor._fault.text()


def test_an_edited_preset_is_marked_as_edited():
    pesto = presets()["pesto"]
    smaller = replace(
        pesto, devices=(replace(pesto.devices[0], capacity_bytes=1 << 31), *pesto.devices[1:])
    )
    assert cluster_title(smaller) == f"{cluster_title(pesto)}, edited"
    assert cluster_title(with_gpus(pesto, 3)) == f"3{cluster_title(pesto)[1:]}, edited"


def test_an_amount_of_memory_finds_no_larger_ones(qtbot):
    chooser = ClusterChooser(profile_of({"a": 1}), presets()["celeritas"])
    qtbot.addWidget(chooser)
    chooser.search.field.setText("8 GB")
    found = [row.data for row in chooser.search.rows if row.data]
    assert 0 < len(found) < len(presets())
    assert all("8 GB" in cluster_title(cluster) for cluster in found)


def test_a_count_of_devices_is_found_before_a_figure_that_holds_it(qtbot):
    chooser = ClusterChooser(profile_of({"a": 1}), presets()["pesto"])
    qtbot.addWidget(chooser)
    QTest.keyClicks(chooser.search.field, "4 v100")
    QTest.keyClick(chooser.search.field, Qt.Key.Key_Return)
    assert len(chooser.chosen.gpus) == 4


def test_the_picture_follows_the_tables_and_stays_while_they_are_wrong(qtbot):
    editor = ClusterEditor(presets()["pcie-4"])
    qtbot.addWidget(editor)
    editor.show()

    def shared():
        return [spot.label for spot in editor.topology.drawing.spots if spot.device is None]

    assert shared() == ["host bridge"]
    editor.links.item(0, 4).setText("my switch")
    qtbot.waitUntil(lambda: shared() == ["my switch"])
    editor.add_device()
    editor.links.item(0, 2).setText("soon")
    qtbot.waitUntil(lambda: "latency must be a number" in editor._fault.text())
    assert shared() == ["my switch"]
    editor.links.item(0, 2).setText("5")
    qtbot.waitUntil(lambda: not editor._fault.text())


def test_the_ends_of_a_link_are_chosen_from_a_list(editor):
    editor.show()
    editor.links.editItem(editor.links.item(0, 0))
    field = editor.links.findChild(QComboBox)
    ends = [field.itemText(at) for at in range(field.count())]
    assert ends == ["every device", "every GPU", "every CPU", "GPU:0", "GPU:1", "CPU:0"]
    field.setCurrentIndex(field.count() - 1)
    editor.links.commitData(field)
    editor.links.closeEditor(field, QAbstractItemDelegate.EndEditHint.NoHint)
    assert editor.links.item(0, 0).text() == "CPU:0"


@pytest.mark.qt_log_ignore("does not support (raise|grabbing)", extend=True)
def test_the_channels_of_a_link_are_checked_and_another_one_is_named(editor, qtbot):
    editor.show()
    before = editor.read().links[0].channels
    assert len(before) == 1
    editor.links.editItem(editor.links.item(0, 4))
    field = editor.links.findChild(ChannelBoxes)
    assert field.boxes[0].text() == "its own"
    assert [box.isChecked() for box in field.boxes].count(True) == 1
    next(box for box in field.boxes if box.text() == "port of the receiver").click()
    QTest.keyClicks(field.other, "my switch")
    QTest.keyClick(field.other, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: len(editor.read().links[0].channels) == 3)
    cluster = editor.read()
    assert "my switch" in [cluster.channels[each] for each in cluster.links[0].channels]
