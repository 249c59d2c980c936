"""The same model with another batch."""

from dataclasses import replace

import numpy as np
import pytest

from enplace.values.batch import with_batch
from enplace.values.measurement import Measurement
from enplace.values.splits import carries_samples
from problems import profile_of

KB = 1 << 10


def training_step():
    """Return a dense layer with the mean over a picture before it, dropout, and its gradient."""
    profile = profile_of(
        dict.fromkeys(["pictures", "mean", "logits", "mask", "drop", "back", "grad"], 10.0)
        | dict.fromkeys(["w", "size", "repeat", "scaled", "update"], 10.0),
        [
            ("pictures", "mean", 64 * KB),
            ("mean", "logits", KB),
            ("w", "logits", 2 * KB),
            ("size", "mask", 16),
            ("mask", "drop", 4 * KB),
            ("logits", "drop", 4 * KB),
            ("drop", "grad", 4 * KB),
            ("grad", "update", KB // 2),
            ("w", "update", 2 * KB),
            ("grad", "repeat", KB // 2),
            ("repeat", "scaled", 64 * KB),
            ("drop", "back", 4 * KB),
        ],
        persistent={"w": 2 * KB},
        temporary={"drop": 100, "update": 100},
    )
    kinds = {
        "pictures": "IteratorGetNext",
        "mean": "Mean",
        "logits": "BiasAdd",
        "mask": "StatelessRandomUniformV2",
        "drop": "Mul",
        "back": "Relu",
        "grad": "BiasAddGrad",
        "w": "VariableV2",
        "size": "Const",
        "repeat": "Tile",
        "scaled": "Mul",
        "update": "ApplyGradientDescent",
    }
    lengths = {"logits": {"batch": 8, "channel": 4}, "w": {"batch": 8}}
    measured = Measurement(config={"batch": 8}, split_lengths=lengths, step_time_us=70.0)
    types = tuple(kinds[name] for name in profile.op_names)
    return replace(profile, op_types=types, measured=measured)


def test_rows_for_each_sample_are_found_behind_means_and_in_gradients():
    profile = training_step()
    found = {profile.op_names[op] for op in np.flatnonzero(carries_samples(profile))}
    assert found == {"pictures", "logits", "mask", "drop", "back", "repeat", "scaled"}


def test_data_grows_with_the_batch_and_weights_stay():
    profile = training_step()
    twice = with_batch(profile, 2)
    size = dict(zip(profile.tensor_op, twice.tensor_bytes / profile.tensor_bytes, strict=True))
    grown = {profile.op_names[op] for op, times in size.items() if times == 2}
    assert grown == {"pictures", "logits", "mask", "drop", "repeat"}
    slower = np.flatnonzero(twice.time_us[:, 0] == 20)
    assert {profile.op_names[op] for op in slower} == grown | {"mean", "grad", "back", "scaled"}
    assert dict(zip(profile.op_names, twice.temporary_bytes.tolist(), strict=True)) == {
        **dict.fromkeys(profile.op_names, 0),
        "drop": 200,
        "update": 100,
    }
    assert twice.persistent_bytes.tolist() == profile.persistent_bytes.tolist()
    assert twice.measured.step_time_us is None, "nobody measured this batch"


@pytest.mark.parametrize(
    ("measured", "size"),
    [
        (Measurement(), None),
        (Measurement(config={"batch": 32}), 32),
        (Measurement(batch_shapes=((16, 224, 224, 3), (16,))), 16),
        (Measurement(source={"batch_size": 4}, config={"batch": 32}), 4),
        (Measurement(source={"batch_size": 0}, config={"batch": "all"}, batch_shapes=((),)), None),
    ],
)
def test_the_batch_is_known_if_the_profile_says_it(measured, size):
    assert measured.batch_size == size


@pytest.mark.parametrize(
    "measured",
    [
        Measurement(framework="torchlight"),
        Measurement(source={"path": "/m.flame", "framework_name": "torchlight"}),
    ],
)
def test_another_batch_has_the_same_framework(measured):
    profile = replace(training_step(), measured=measured)
    assert with_batch(profile, 2.0).measured.framework_name == "torchlight"
