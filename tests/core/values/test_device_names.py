"""The parts of a device's name in a cluster of several hosts."""

import pytest

from enplace.values.device_names import device_label, is_task, task_of


def test_the_task_is_read_from_a_full_name():
    assert task_of("/job:worker/replica:0/task:1/device:GPU:0") == "/job:worker/task:1"
    assert task_of("/device:GPU:0") == ""


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("/job:worker/task:0", True), ("/job:worker/task:0/device:GPU:0", False), ("", False)],
)
def test_a_task_is_told_from_a_device(text, is_one):
    assert is_task(text) == is_one


def test_names_are_shown_without_the_colon():
    assert device_label("GPU:0") == "GPU 0"


def test_names_on_several_hosts_include_the_host():
    names = [f"/job:worker/task:{task}/device:GPU:0" for task in range(2)]
    assert [device_label(name) for name in names] == ["worker 0 GPU 0", "worker 1 GPU 0"]
    assert device_label("->".join(names)) == "worker 0 GPU 0->worker 1 GPU 0"
