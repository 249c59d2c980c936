"""An opened group: its ops as a layered graph, with ports to the groups around it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QRectF, QSizeF, Qt
from PySide6.QtTest import QTest

from documents import document_of
from enplace.names.groups import group_ops
from enplace.values.measurement import Measurement
from enplace_studio.views.graph import level as level_module
from enplace_studio.views.graph.camera import MARGIN, READABLE_OPS, Camera
from enplace_studio.views.graph.graph_view import GraphView
from enplace_studio.widgets.labels import ElidedLabel
from enplace_studio.widgets.pictures import write_picture
from problems import cluster_of, profile_of

LEFT, NO_KEY = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
KIB = 1024
LAYERS = 4
OPS = 20


def layers_document(n_ops=OPS, lengths=None):
    """Four layers of ops: in each, op 0 feeds all others, which feed the last one.

    Two tensors go from each layer to the next; the second half runs on GPU 1.
    """
    names = [[f"layer{at}/op{i}" for i in range(n_ops)] for at in range(LAYERS)]
    edges = [(one[0], other, KIB) for one in names for other in one[1:-1]]
    edges += [(other, one[-1], 2 * KIB) for one in names for other in one[1:-1]]
    for one, other in pairwise(names):
        edges += [(one[-1], other[0], 3 * KIB), (one[0], other[-1], KIB)]
    every = [name for one in names for name in one]
    profile = profile_of(dict.fromkeys(every, 100.0), edges)
    if lengths is not None:
        profile = replace(profile, measured=Measurement(split_lengths=lengths))
    places = {name: int(name >= "layer2") for name in every}
    return document_of(profile, cluster_of(2, b1_us_per_byte=0.1), places)


def card(view, node) -> QPoint:
    return view.canvas.camera.transform().map(view.model.scene.rects[node].center()).toPoint()


def node_called(view, name) -> int:
    return view.model.level.grouping.names.index(name)


def ports_of(view) -> dict[str, int]:
    """Return the node of each port by what it says."""
    level = view.model.level
    return {level.describe(node): node for node in range(level.grouping.n_groups, level.n_nodes)}


@pytest.fixture
def open_layer(qtbot):
    def open_it(document, name="layer 1", width=1000, height=700):
        view = GraphView(document)
        qtbot.addWidget(view)
        view.resize(width, height)
        with qtbot.waitExposed(view):
            view.show()
        view.model.open(node_called(view, name))
        view.model.wait()
        return view

    return open_it


@pytest.fixture
def view(open_layer):
    return open_layer(layers_document())


def test_ops_are_layered_along_their_edges_between_the_ports(view):
    scene = view.model.scene
    assert scene.n == OPS
    tops = np.array([rect.top() for rect in scene.rects])
    edges = scene.level.edges
    shown = ~scene.quiet
    assert (tops[edges.source] < tops[edges.target])[shown].all()
    assert shown.sum() > 2 * OPS / 2
    rects = scene.rects
    assert not any(a.intersects(b) for at, a in enumerate(rects) for b in rects[:at])


def test_a_port_names_the_neighbour_and_the_bytes_of_all_its_edges(view):
    assert set(ports_of(view)) == {"from layer 0, 4.0 KiB", "to layer 2, 4.0 KiB"}
    tops = {text: view.model.scene.rects[node].top() for text, node in ports_of(view).items()}
    assert tops["from layer 0, 4.0 KiB"] < tops["to layer 2, 4.0 KiB"]
    tip = view.canvas.tip(ports_of(view)["from layer 0, 4.0 KiB"]).splitlines()
    assert tip[:2] == ["from layer 0", "4.0 KiB in 2 tensors"]


def test_an_edge_to_a_port_on_another_device_is_marked_as_crossing(view):
    scene, port = view.model.scene, ports_of(view)
    edges = scene.level.edges
    before = edges.source == port["from layer 0, 4.0 KiB"]
    after = edges.target == port["to layer 2, 4.0 KiB"]
    assert not scene.crossing[before].any()
    assert scene.crossing[after].all()
    view.document.place(scene.ops([port["to layer 2, 4.0 KiB"]]), 0)
    assert not view.model.scene.crossing[after].any()


def test_a_click_on_a_port_selects_the_neighbour_and_a_double_click_opens_it(view, qtbot):
    port = ports_of(view)["to layer 2, 4.0 KiB"]
    QTest.mouseClick(view.canvas, LEFT, NO_KEY, card(view, port))
    names = view.document.problem.profile.op_names
    assert {names[op] for op in view.document.selection} == {f"layer2/op{i}" for i in range(OPS)}
    assert view.model.marks(None).selected == {port}
    QTest.mouseDClick(view.canvas, LEFT, NO_KEY, card(view, port))
    assert [level.title for level in view.model.levels] == ["All groups", "layer 2"]


def test_keys_reach_a_port_and_enter_follows_it(view):
    port = ports_of(view)["from layer 0, 4.0 KiB"]
    view.canvas.setFocus()
    view.canvas.reveal(node_called(view, "layer1/op0"))
    QTest.keyClick(view.canvas, Qt.Key.Key_Up)
    assert view.canvas.current == port
    assert view.canvas.accessibleDescription() == "from layer 0, 4.0 KiB"
    QTest.keyClick(view.canvas, Qt.Key.Key_Return)
    assert view.model.level.title == "layer 0"


def test_a_rubber_band_selects_ops_and_no_neighbours(view):
    corner = view.canvas.rect().bottomRight() - QPoint(2, 2)
    QTest.mousePress(view.canvas, LEFT, NO_KEY, QPoint(2, 2))
    QTest.mouseMove(view.canvas, QPoint(60, 60))
    QTest.mouseMove(view.canvas, corner)
    QTest.mouseRelease(view.canvas, LEFT, NO_KEY, corner)
    assert 0 < len(view.document.selection) <= OPS
    profile = view.document.problem.profile
    assert {profile.scopes[op] for op in view.document.selection} == {"layer1"}


def test_an_op_can_be_dragged_to_a_device(qtbot):
    view = GraphView(layers_document())
    qtbot.addWidget(view)
    view.resize(1000, 700)
    with qtbot.waitExposed(view):
        view.show()
    view.model.open(node_called(view, "layer 1"))
    view.model.wait()
    for name, device in (("layer1/op3", 1), ("layer1/op4", 1)):
        node = node_called(view, name)
        view.canvas.reveal(node)
        place, item = next(p for p in view.devices._placed if p[1].device == device)
        chip = view.canvas.mapFromGlobal(view.devices.mapToGlobal(place.center()))
        QTest.mousePress(view.canvas, LEFT, NO_KEY, card(view, node))
        QTest.mouseMove(view.canvas, card(view, node) + QPoint(30, 5))
        QTest.mouseMove(view.canvas, chip)
        QTest.mouseRelease(view.canvas, LEFT, NO_KEY, chip)
        assert view.document.problem.pins[view.document.problem.profile.index[name]] == item.device
        view.model.wait()


def test_the_card_that_the_user_went_to_stays_in_view_when_the_layout_arrives(qtbot):
    view = GraphView(layers_document())
    qtbot.addWidget(view)
    view.resize(400, 300)
    with qtbot.waitExposed(view):
        view.show()
    view.model.open(node_called(view, "layer 1"))
    assert view.model._layout.is_busy
    last = node_called(view, f"layer1/op{OPS - 1}")
    view.canvas.reveal(last)
    view.model.wait()
    assert view.canvas.current == last
    assert view.canvas.visible().contains(view.model.scene.rects[last])


def test_a_graph_that_is_too_wide_opens_at_its_first_cards(open_layer):
    """The last op fans out below, so that the left top corner of the graph is empty."""
    chain = [f"middle/op{i}" for i in range(12)]
    fan = [f"middle/end{i}" for i in range(12)]
    edges = [(one, other, KIB) for one, other in pairwise(chain)]
    edges += [(chain[-1], end, KIB) for end in fan]
    every = [*chain, *fan, *(f"outer/op{i}" for i in range(50))]
    profile = profile_of(dict.fromkeys(every, 10.0), edges)
    document = document_of(profile, cluster_of(2), dict.fromkeys(every, 0))
    document.open(replace_grouping(document, group_ops(profile, 2)))
    view = open_layer(document, "middle", 500, 400)
    first = view.model.scene.rects[node_called(view, "middle/op0")]
    assert view.canvas.visible().contains(first)


def test_a_wide_graph_is_shown_where_most_of_its_first_cards_are():
    """Five cards on the left and five on the right, two of which are far apart from the rest."""
    lefts = [0, 100, 200, 300, 400, 1500, 2000, 2100, 2200, 3000]
    cards = [QRectF(left, 0, 80, 40) for left in lefts] + [QRectF(1000, 900, 80, 40)]
    camera = Camera()
    camera.show_most(cards, QRectF(0, 0, 3080, 940), QSizeF(520, 400))
    seen = camera.visible(QRectF(0, 0, 520, 400))
    assert [seen.contains(card) for card in cards] == [True] * 5 + [False] * 6


def replace_grouping(document, grouping):
    return replace(document.project, grouping=grouping)


def test_a_card_shows_type_time_output_and_lengths_of_its_op(open_layer, tmp_path):
    lengths = {"layer1/op0": {"sample": 64, "channel": 2048}}
    view = open_layer(layers_document(lengths=lengths))
    tip = view.canvas.tip(node_called(view, "layer1/op0")).splitlines()
    assert tip[1] == "Op · sample 64, channel 2,048 · 0.10 ms"
    path = tmp_path / "graph.svg"
    write_picture(path, view.drawing(), "The graph")
    content = path.read_text()
    for text in (">op0<", ">Op<", ">0.10 ms<", ">1.0 KiB<", ">layer 2<"):
        assert text in content, text


def test_a_search_marks_ops_and_no_ports(view):
    view.start_search()
    view.search.line.setText("op3")
    assert view.search.found.text() == "4 ops (1 here)"
    assert {view.model.level.grouping.names[node] for node in view.model.matches} == {"layer1/op3"}
    assert not view.grab().isNull()


def test_a_group_of_too_many_ops_opens_into_groups_and_says_so(open_layer, monkeypatch):
    monkeypatch.setattr(level_module, "MOST_OPS", OPS - 1)
    monkeypatch.setattr(level_module, "subgroups", lambda profile, ops: halves(profile, ops))
    view = open_layer(layers_document())
    assert view.model.level.extent == "20 ops in 2 groups; open one to see its ops"
    assert not view.model.level.of_ops


def halves(profile, ops):
    """Put ops into two groups."""
    from enplace.names.groups import Grouping

    group = np.full(profile.n_ops, -1)
    group[ops] = np.arange(len(ops)) * 2 // len(ops)
    return Grouping(group, ("first", "second"), ("first", "second"), ("first", "second"))


def test_the_smallest_of_many_neighbours_share_a_port(qtbot, open_layer):
    middle = [f"middle/op{i}" for i in range(30)]
    outer = [f"outer{at}/op{i}" for at in range(12) for i in range(6)]
    edges = [(f"outer{at}/op0", middle[at], (at + 1) * KIB) for at in range(12)]
    profile = profile_of(dict.fromkeys([*outer, *middle], 10.0), edges)
    document = document_of(profile, cluster_of(2), dict.fromkeys([*outer, *middle], 0))
    view = open_layer(document, "middle")
    texts = list(ports_of(view))
    assert len(texts) == 8
    assert texts[-1] == "from 5 other groups, 15 KiB"
    port = ports_of(view)[texts[-1]]
    view.canvas.select([port])
    assert len(view.document.selection) == 5 * 6
    view.canvas.open(port)
    assert view.model.level.title == "All groups"
    assert view.model.level.grouping.names[view.canvas.current].startswith("outer")


def test_a_long_path_does_not_widen_a_narrow_pane(open_layer):
    long = "encoder / layer 1 / attention / self / query"
    document = layers_document()
    view = open_layer(document, width=420, height=320)
    view.model.levels[-1] = replace(view.model.level, title=" and ".join([long] * 9))
    view._show_level()
    assert view.minimumSizeHint().width() <= 420
    assert "20 ops" in {one.whole for one in view.crumbs.findChildren(ElidedLabel)}


@pytest.mark.parametrize(("needed", "scale"), [(0.9, 0.9), (0.7, 0.7), (0.5, READABLE_OPS)])
def test_all_is_shown_if_it_is_almost_as_large_as_one_can_read(needed, scale):
    camera = Camera()
    camera.fit(QRectF(0, 0, 1000, 100), QSizeF(1000 * needed + 2 * MARGIN, 500), READABLE_OPS)
    assert camera.scale == pytest.approx(scale)


def test_ops_open_at_a_size_one_can_read(opener, qtbot):
    ops = {f"m/a{n}": 1.0 for n in range(60)}
    edges = [(f"m/a{n}", f"m/a{n + 1}", KIB) for n in range(59)]
    document = document_of(
        profile_of({**ops, "x": 1.0}, edges), cluster_of(2), {**dict.fromkeys(ops, 0), "x": 0}
    )
    view = opener(GraphView, document, 700, 500)
    view.canvas.open(0)
    view.model.wait()
    assert view.canvas.camera.scale >= READABLE_OPS
    first = min(view.model.scene.rects, key=lambda rect: rect.top())
    assert view.canvas.visible().contains(first)


def test_a_group_with_many_ops_opens_into_its_scopes_in_place_or_alone(open_layer):
    names = [f"layer{i}/{part}/op{n}" for i in range(40) for part in "ab" for n in range(30)]
    edges = [(one, other, KIB) for one, other in pairwise(names)]
    profile = profile_of(dict.fromkeys(names, 100.0), edges)
    view = open_layer(document_of(profile, cluster_of(2), dict.fromkeys(names, 0)))
    assert view.model.level.grouping.labels == ("a", "b")
    view.model.open(node_called(view, "layer 1 / b"))
    assert view.model.level.of_ops
    assert len(view.model.levels) == 3
    view.model.go_to(0)
    view.canvas.select([node_called(view, "layer 1")])
    view.document.turn_groups(view.document.selection)
    view.model.reset()
    assert {"layer 0", "layer 1 / a", "layer 1 / b"} <= set(view.model.level.grouping.names)
    assert len(view.model.marks(None).selected) == 2
