"""The GPUs that NVML reports, with a stand-in for its package."""

import sys

import pytest

from enplace.frameworks import devices
from enplace.frameworks.nvml import driver_version, matched, visible_cards
from enplace.frameworks.tensorflow.framework import FRAMEWORK
from fake_nvml import GIB, gpu, install

PAIR = gpu(uuid="GPU-aa", free_gib=90), gpu(uuid="GPU-bb", free_gib=40)
CUT = gpu(
    uuid="GPU-cc",
    slices=[gpu("slice", "MIG-1", 10), None, gpu("slice", "MIG-2", 20)],
)


def shown():
    return [card.uuid for card in visible_cards()]


def test_free_memory_is_what_other_processes_leave(monkeypatch):
    fake = install(monkeypatch, *PAIR)
    assert [card.free_bytes for card in visible_cards()] == [90 * GIB, 40 * GIB]
    assert driver_version() == "570.1"
    assert not fake.is_open


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["GPU-aa", "GPU-bb"]),
        ("1,0", ["GPU-bb", "GPU-aa"]),
        ("1", ["GPU-bb"]),
        ("GPU-b", ["GPU-bb"]),
        ("0,7,1", ["GPU-aa"]),
        ("-1", []),
        ("", []),
    ],
)
def test_cuda_visible_devices_chooses_cards(visible, expected, monkeypatch):
    install(monkeypatch, *PAIR, visible=visible)
    assert shown() == expected


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["MIG-1"]),
        ("MIG-2", ["MIG-2"]),
        ("MIG-2,MIG-1", ["MIG-2"]),
        ("GPU-aa,MIG-1", ["GPU-aa"]),
    ],
)
def test_a_process_sees_one_slice_and_no_other_gpu(visible, expected, monkeypatch):
    install(monkeypatch, CUT, PAIR[0], visible=visible)
    assert shown() == expected
    assert visible_cards()[0].free_bytes in (10 * GIB, 20 * GIB, 90 * GIB)


def test_nvlink_joins_some_cards(monkeypatch):
    a = gpu(uuid="GPU-a", nvlinks=["GPU-b"])
    b = gpu(uuid="GPU-b", nvlinks=["GPU-a"])
    install(monkeypatch, a, b, gpu(uuid="GPU-c"))
    assert [sorted(card.nvlinks) for card in visible_cards()] == [["GPU-b"], ["GPU-a"], []]


def test_without_a_driver_or_the_package_nothing_is_known(monkeypatch):
    install(monkeypatch, *PAIR, driver=False)
    assert (visible_cards(), driver_version()) == ([], "")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert (visible_cards(), driver_version()) == ([], "")


def test_if_the_driver_refuses_a_question_nothing_is_known(monkeypatch):
    fake = install(monkeypatch, gpu(uuid="GPU-a", slices=[gpu()]))
    fake.refused = "nvmlDeviceGetMemoryInfo"
    assert visible_cards() == []
    assert not fake.is_open


def test_equal_cards_may_have_another_name_in_the_framework(monkeypatch):
    install(monkeypatch, *PAIR)
    cards = visible_cards()
    assert matched(cards, ["NVIDIA H200", "NVIDIA H200"]) == cards


def test_cards_that_differ_are_numbered_as_the_framework_does(monkeypatch):
    install(monkeypatch, gpu("T4", "GPU-t"), gpu("H200", "GPU-h"))
    cards = visible_cards()
    assert [card.uuid for card in matched(cards, ["H200", "T4"])] == ["GPU-h", "GPU-t"]
    assert matched(cards, ["H200"]) == []
    assert matched(cards, ["H200", "L4"]) == []


def test_gpus_are_the_usual_devices_even_without_the_driver_in_proc_as_in_wsl(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(devices, "_NVIDIA_DRIVERS", (tmp_path / "missing", tmp_path / "wsl"))
    install(monkeypatch, *PAIR)
    assert FRAMEWORK.usual_devices() == "gpu:all"
    install(monkeypatch)
    assert FRAMEWORK.usual_devices() == "cpu:2"
    (tmp_path / "wsl").touch()  # without the package that reads NVML
    assert FRAMEWORK.usual_devices() == "gpu:all"
