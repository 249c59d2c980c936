"""The ``measured`` block reads back as written, and wrong fields are refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from enplace.errors import EnplaceError, ProfileError
from enplace.files.json_text import dump_json
from enplace.readers.measurement import measurement_from_json
from enplace.values.measurement import Deviation, Evaluation, MeasuredLink, Measurement
from enplace.values.profile import make_profile
from enplace.writers.measurement import measurement_to_json
from problems import cluster_of

OFF = Deviation(mean=0.1, of_sum=0.2, near=0.9, ops=3)
FULL = Measurement(
    step_time_us=50.0,
    op_devices={"a": "GPU:0"},
    op_kernels={"a": 2},
    op_deviation={"a": 0.1},
    peak_bytes={"GPU:0": 100},
    launch_gap_us=1.5,
    op_overhead_us=2.5,
    cluster=cluster_of(2),
    links=(MeasuredLink("GPU:0", "GPU:1", (1.0, 2.0), (3.0, 4.0), 2.0, 1.0, 0.99),),
    devices="gpu:2",
    source={"kind": "script", "path": "train.py"},
    function="train",
    left_out=("evaluate",),
    compiled=False,
    steps=100,
    warm_ups=10,
    gpu="A GPU",
    framework_version="2.21",
    placement="single",
    tf32=True,
    config={"batch": 8},
    backward=(0,),
    split_lengths={"a": {"batch": 8}},
    batch_shapes=((8, 4), (8,), ()),
    estimated="A GPU",
    estimated_speed=0.5,
    evaluation=Evaluation(OFF, OFF, 32, (8, 16), 2, 40.0),
    other={"from_a_newer_enplace": [1]},
)


@pytest.mark.parametrize(
    "measured", [FULL, Measurement(), Measurement(paper="A paper", links=(), backward=())]
)
def test_a_written_measurement_reads_back_the_same(measured: Measurement) -> None:
    text = dump_json(measurement_to_json(measured))
    assert measurement_from_json(json.loads(text)) == measured


def test_what_is_written_is_plain_data_that_needs_no_file() -> None:
    assert measurement_from_json(measurement_to_json(FULL)) == FULL


def test_null_means_unknown() -> None:
    assert measurement_from_json(dict.fromkeys(measurement_to_json(FULL))) == Measurement()


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("step_time_us", "fast", "step_time_us: must be a number"),
        ("step_time_us", float("nan"), "step_time_us: must be a number"),
        ("op_devices", ["GPU:0"], "op_devices: must be an object"),
        ("op_devices", {"a": 0}, r"op_devices\.a: must be a text"),
        ("op_kernels", {"a": 1.5}, r"op_kernels\.a: must be a whole number"),
        ("op_deviation", {"a": "little"}, r"op_deviation\.a: must be a number"),
        ("launch_gap_us", [], "launch_gap_us: must be a number"),
        ("cluster", 3, "cluster: must be an object"),
        ("links", {}, "links: must be a list"),
        ("links", [{"from": "GPU:0"}], r"links\[0\]: '[a-z_]+' is missing"),
        ("devices", 2, "devices: must be a text"),
        ("source", 2, "source: must be an object"),
        ("source", {"path": "/x", "kind": ["x"]}, r"source\.kind: must be a text"),
        ("source", {"path": 3}, r"source\.path: must be a text"),
        ("source", {"arguments": [1]}, r"source\.arguments\[0\]: must be a text"),
        ("source", {"batch_size": "8"}, r"source\.batch_size: must be a number from 0"),
        ("left_out", [1], r"left_out\[0\]: must be a text"),
        ("compiled", "yes", "compiled: must be true or false"),
        ("backward", [-1], r"backward\[0\]: must be a number from 0"),
        ("framework_version", 2.21, "framework_version: must be a text"),
        ("tensorflow", 2.21, "tensorflow: must be a text"),
        ("evaluation", {"memory": 1}, r"evaluation\.memory: must be an object"),
        ("split_lengths", 7, "split_lengths: must be an object"),
        ("split_lengths", {"a": ["rows"]}, r"split_lengths\.a: must be an object"),
        ("split_lengths", {"a": {"rows": True}}, r"split_lengths\.a\.rows: must be a number"),
        ("split_lengths", {"a": {"rows": 10**400}}, r"split_lengths\.a\.rows: must be a number"),
    ],
)
def test_a_wrong_type_is_refused_with_the_name_of_the_field(
    key: str, value: Any, place: str
) -> None:
    with pytest.raises(EnplaceError, match=rf"^measured\.{place}"):
        measurement_from_json({key: value})


def test_the_key_of_old_files_for_the_version_is_read() -> None:
    read = measurement_from_json({"tensorflow": "2.15"})
    assert read == Measurement(framework="tensorflow", framework_version="2.15")


def test_a_backward_op_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ProfileError, match="there is no op number 1; ops are 0 to 0"):
        make_profile(
            "one",
            op_names=["a"],
            op_types=[""],
            scopes=[""],
            time_us=[[1.0, 1.0]],
            persistent_bytes=[0],
            temporary_bytes=[0],
            colocation=[""],
            edge_source=[],
            edge_output=[],
            edge_op=[],
            edge_bytes=[],
            measured=Measurement(backward=(1,)),
        )
