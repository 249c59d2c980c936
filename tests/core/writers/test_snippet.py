"""A plan as a Python module gives TensorFlow the planned devices."""

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from enplace.frameworks.tensorflow.device_names import device_names as tensorflow_devices
from enplace.frameworks.tensorflow.snippet import python_snippet
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.result import Result
from problems import device_names


def run_snippet(source: str, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Execute a snippet with a fake TensorFlow that returns the device function."""
    tensorflow = ModuleType("tensorflow")
    tensorflow.compat = SimpleNamespace(v1=SimpleNamespace(device=lambda function: function))
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    names: dict = {"__name__": "placement"}
    exec(compile(source, "placement.py", "exec"), names)
    return names


@pytest.mark.parametrize("which", ["small", "middle"])
def test_the_snippet_places_every_op_on_its_device(which, request, monkeypatch):
    schedule = request.getfixturevalue(which)
    device_of = run_snippet(python_snippet(Result(schedule)), monkeypatch)["placement"]()
    for op, device in device_names(schedule).items():
        assert device_of(SimpleNamespace(name=op, device="")) == f"/device:{device}"


def test_the_snippet_does_not_place_unknown_ops(small, monkeypatch):
    device_of = run_snippet(python_snippet(Result(small)), monkeypatch)["placement"]()
    assert device_of(SimpleNamespace(name="new", device="/device:CPU:0")) == "/device:CPU:0"


def test_the_snippet_runs_with_any_model_name(small, monkeypatch):
    name = 'evil"""\nraise SystemExit  # \\'
    problem = small.problem
    profile = replace(problem.profile, name=name)
    renamed = replace(small, problem=replace(problem, measured_profile=profile))
    assert run_snippet(python_snippet(Result(renamed)), monkeypatch)["PLACEMENT"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["gpu:1", "GPU:0"], ["/device:GPU:1", "/device:GPU:0"]),
        (["left", "right"], ["/device:GPU:0", "/device:GPU:1"]),
        (["GPU:1", "gpu:1"], ["/device:GPU:0", "/device:GPU:1"]),
        (
            ["/job:worker/task:0/device:GPU:0", "/job:worker/task:1/device:GPU:0"],
            ["/job:worker/task:0/device:GPU:0", "/job:worker/task:1/device:GPU:0"],
        ),
    ],
)
def test_devices_have_tensorflow_names(names, expected):
    devices = tuple(Device(name, "gpu", 1) for name in names)
    links = (Link(0, 1, 0.0, 0.0, (0,)), Link(1, 0, 0.0, 0.0, (0,)))
    assert tensorflow_devices(Cluster("c", devices, ("x",), links)) == expected
