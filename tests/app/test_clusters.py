import json
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog

from enplace.readers.clusters import presets
from enplace.writers.clusters import cluster_to_json
from enplace_studio.cluster_editor import ClusterEditor
from enplace_studio.clusters import ClusterChooser, cluster_title
from problems import cluster_of, profile_of


def shown(chooser):
    return [chooser.list.item(row).text().strip() for row in range(chooser.list.count())]


@pytest.fixture
def editor(qtbot):
    made = ClusterEditor(presets()["pesto"])
    qtbot.addWidget(made)
    return made


def test_the_chooser_lists_every_preset_under_a_heading_and_marks_the_current(qtbot):
    chooser = ClusterChooser(profile_of({"a": 1}), presets()["celeritas"])
    qtbot.addWidget(chooser)
    for cluster in presets().values():
        assert any(line.endswith(f" {cluster.name}") for line in shown(chooser))
    chooser.accept()
    assert chooser.chosen is presets()["celeritas"]


def test_a_custom_cluster_stays_in_the_list(qtbot):
    own = cluster_of(2)
    chooser = ClusterChooser(profile_of({"a": 1}), own)
    qtbot.addWidget(chooser)
    assert chooser.list.currentItem().data(Qt.ItemDataRole.UserRole) is own


def test_headings_cannot_be_chosen(qtbot):
    chooser = ClusterChooser(profile_of({"a": 1}), presets()["pesto"])
    qtbot.addWidget(chooser)
    assert chooser.list.item(0).flags() == Qt.ItemFlag.NoItemFlags


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
