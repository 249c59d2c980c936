from dataclasses import replace

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtTest import QTest

from documents import chain_document, document_of
from enplace.machine.caching_allocator import reserved_on_devices
from enplace.text import size
from enplace.values.measurement import Measurement
from enplace_studio.model.document import Document
from enplace_studio.model.requests import Wanted
from enplace_studio.views.memory.memory_view import MemoryView
from problems import cluster_of, profile_of


@pytest.fixture
def open_view(opener):
    def open_it(document, width=280, height=240):
        return opener(MemoryView, document, width, height)

    return open_it


def big_document(capacity_gib: float, measured: Measurement | None = None) -> Document:
    mib = 1 << 20
    profile = profile_of(
        {"a": 10, "b": 10}, [("a", "b", 400 * mib)], persistent={"a": 600 * mib, "b": 1}
    )
    profile = replace(profile, measured=measured or profile.measured)
    cluster = cluster_of(3, capacity_bytes=round(capacity_gib * 1024 * mib), b1_us_per_byte=1e-6)
    return document_of(profile, cluster, {"a": 0, "b": 0}, {"a": 0, "b": 1})


def test_a_device_shows_its_peak_against_its_capacity(open_view):
    view = open_view(big_document(2))
    (device,) = view.devices
    assert (device.title, device.verdict) == ("GPU 0", "1,000 MiB of 2 GiB at the peak")
    assert device.over_bytes == 0


def test_a_device_that_is_too_small_shows_the_excess(open_view):
    view = open_view(big_document(0.75))
    assert view.devices[0].verdict == "does not fit: 232 MiB over"
    view.grab()


def test_a_device_that_is_nearly_full_says_so(open_view):
    (device,) = open_view(big_document(1)).devices
    assert device.verdict == "nearly full: 1,000 MiB of 1 GiB at the peak"


def test_unused_devices_are_left_out(open_view, qtbot):
    document = big_document(2)
    view = open_view(document)
    document.choose_plan(document.plans[1])
    qtbot.waitUntil(lambda: [device.title for device in view.devices] == ["GPU 0", "GPU 1"])


def test_an_almost_empty_device_is_one_line(open_view):
    view = open_view(chain_document())
    assert all(device.is_compact for device in view.devices)
    assert view.devices[0].sizeHint().height() < 30


def test_the_curve_lists_the_tensors_held_at_the_pointer(open_view):
    view = open_view(big_document(2))
    device = view.devices[0]
    middle = device.curve_area.center()
    tip = device.tip_at(
        QPointF(device.curve_area.left() + device.curve_area.width() * 0.75, middle.y())
    )
    assert tip.splitlines() == [
        "GPU 0 at 0.015 ms: 1,000 MiB",
        "400 MiB   a",
        "600 MiB   weights and optimiser",
    ]


def test_the_bar_names_its_parts(open_view, qtbot):
    document = big_document(2)
    view = open_view(document)
    document.choose_plan(document.plans[1])
    qtbot.waitUntil(lambda: len(view.devices) == 2)
    tip = view.devices[1].tip_at(QPointF(10, 25))
    assert "received from other devices   400 MiB" in tip
    assert "activations   0 B" in tip


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_models_of_pytorch_also_show_what_its_allocator_would_reserve(open_view, framework):
    document = big_document(2, Measurement(framework=framework))
    (device,) = open_view(document).devices
    tip = device.tip_at(QPointF(10, 25))
    if framework == "torch":
        predicted = size(reserved_on_devices(document.schedule)[0])
        assert f"reserved by PyTorch, predicted   {predicted}" in tip.splitlines()
    else:
        assert "predicted" not in tip


def test_the_pane_follows_the_schedule(open_view, qtbot):
    document = big_document(2)
    view = open_view(document)
    document.place([1], 1)
    qtbot.waitUntil(lambda: [device.title for device in view.devices] == ["GPU 0", "GPU 1"])
    document.undo_stack.undo()
    qtbot.waitUntil(lambda: [device.title for device in view.devices] == ["GPU 0"])


def test_an_empty_pane_shows_no_device(open_view):
    view = open_view(Document())
    view.grab()
    assert view.devices == []


def test_a_click_asks_for_everything_in_memory(open_view, qtbot):
    document = big_document(2)
    view = open_view(document)
    with qtbot.waitSignal(document.requests.list_rows) as asked:
        QTest.mouseClick(view.devices[0], Qt.MouseButton.LeftButton, pos=QPoint(20, 5))
    assert asked.args == [Wanted("memory", where=(0, view.devices[0].split.peak_us))]
    with qtbot.waitSignal(document.requests.list_rows) as asked:
        view.table_button.click()
    assert asked.args == [Wanted("memory")]


def test_a_device_has_a_menu_that_lists_and_selects_what_fills_it(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    widget = view.devices[0]
    actions = {a.text(): a for a in view.menu_at(widget, QPoint(5, 5)).actions()}
    select = next(a for text, a in actions.items() if text.startswith("Select the"))
    select.trigger()
    assert document.selection
    assert "Lock GPU 0 as it is" in actions
    listing = next(a for text, a in actions.items() if text.startswith("List what is in it"))
    with qtbot.waitSignal(document.requests.list_rows) as asked:
        listing.trigger()
    assert asked.args == [Wanted("memory", where=(0, widget.split.peak_us))]
