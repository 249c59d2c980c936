"""No column of a profile is lost on the way, whatever becomes of the ops."""

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enplace.api.graphs import from_networkx, to_networkx
from enplace.coarsen.contract import contract
from enplace.errors import ProfileError
from enplace.frameworks.evaluation import estimate
from enplace.placers.batch_shares import share_of_batch
from enplace.processes.codecs import profile_from, profile_message
from enplace.readers import read_profile
from enplace.values.batch import with_batch
from enplace.values.columns import Column, Cut, Merge
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from enplace.values.profile import (
    OP_COLUMNS,
    Profile,
    edge_columns,
    make_profile,
    with_control_edges,
)
from enplace.values.splits import Split, split_profile
from enplace.writers import write_profile
from problems import cluster_of

NAMES = ["fed", "first", "second", "last"]
TYPES = ["Placeholder", "Relu", "Tanh", "Sigmoid"]
KNOWN = {"op_types": TYPES, "op_kinds": ["input", *["elementwise"] * 3]}
EDGES = [(0, 0, 1, 4096), (1, 0, 2, 4096), (2, 0, 3, 4096)]

each_column = pytest.mark.parametrize("name", OP_COLUMNS)


def told(column: Column, at: int) -> Any:
    """Make a value that is not the default, another one for each op."""
    if column.type is str:
        return column.choices[at % len(column.choices)] if column.choices else f"text {at}"
    return [8.0 * at + 8, 16.0] if column.width else column.type(8 * at + 8)


def profile_with(name: str) -> Profile:
    column = OP_COLUMNS[name]
    values = [told(column, at) for at in range(len(NAMES))]
    columns = {"op_types": TYPES, "time_us": [[8.0, 16.0]] * len(NAMES), name: values}
    if name == "persistent_bytes":
        columns[name] = [8, 0, 0, 8]  # such ops are not split
    if name in KNOWN:
        columns[name] = KNOWN[name]
    measured = Measurement(batch_shapes=((8, 4),), launch_gap_us=2.0)
    return make_profile("told", op_names=NAMES, **columns, **edge_columns(EDGES), measured=measured)


def through_file(suffix: str) -> Callable[[Profile, Path], Profile]:
    def write_and_read(profile: Profile, folder: Path) -> Profile:
        write_profile(folder / f"p{suffix}", profile)
        return read_profile(folder / f"p{suffix}")

    return write_and_read


@each_column
@pytest.mark.parametrize(
    "way",
    [
        through_file(".enplace"),
        through_file(".json"),
        lambda profile, _: from_networkx(to_networkx(profile)),
        lambda profile, _: profile_from(profile_message(profile)),
        lambda profile, _: with_control_edges(profile, ((0, 3),)),
        lambda profile, _: with_batch(profile, 1),
        lambda profile, _: estimate(profile, [shrunk(profile, n) for n in (2, 4)], [2, 4], 8),
    ],
    ids=["archive", "text form", "networkx", "message", "control edges", "batch", "estimate"],
)
def test_a_column_stays(name: str, way: Callable[[Profile, Path], Profile], tmp_path: Path) -> None:
    profile = profile_with(name)
    again = way(profile, tmp_path)
    np.testing.assert_allclose(again.time_us, profile.time_us)
    assert np.array_equal(getattr(again, name), getattr(profile, name))


def shrunk(profile: Profile, batch: int) -> Profile:
    """Make the profile of a smaller batch, in which all that grows is less."""
    grown = {n: getattr(profile, n) * batch // 8 for n, each in OP_COLUMNS.items() if each.grows}
    return replace(profile, **grown, tensor_bytes=profile.tensor_bytes * batch // 8)


@each_column
def test_parts_have_their_share_of_a_column(name: str) -> None:
    profile, column = profile_with(name), OP_COLUMNS[name]
    split = split_profile(profile, [Split("second", "batch", 2)])
    before, after = getattr(profile, name), getattr(split, name)
    assert np.array_equal(after[split.index["last"]], before[3])
    part, join = (after[split.index[f"second/split/{which}"]] for which in ("part_1", "join_0"))
    if name == "time_us":
        expected = 2 + (before[2] - 2) / 2
    elif name in ("persistent_bytes", "state_bytes"):
        expected = 0
    else:
        expected = {
            Cut.SAME: before[2],
            Cut.SHARE: 0 if column.type is str else before[2] / 2,
            Cut.OWN: "text 2/split/part_1",
        }[column.cut]
    assert np.array_equal(part, expected)
    if column.cut is Cut.SAME and name not in KNOWN:
        assert join == before[2]


@each_column
def test_a_group_has_what_its_ops_have(name: str) -> None:
    profile, merge = profile_with(name), OP_COLUMNS[name].merge
    group = contract(Problem(profile, cluster_of(2)), np.array([0, 0, 1, 1])).profile
    before, after = getattr(profile, name), getattr(group, name)
    if merge is Merge.FIRST:
        assert after == (before[0], before[2])
    elif merge is Merge.SUM:
        assert np.array_equal(after, [before[0] + before[1], before[2] + before[3]])
    elif name == "temporary_bytes":
        assert (after >= [16, 32]).all()
    else:
        assert after == ("", "")  # of groups that share nothing with others


@each_column
@pytest.mark.parametrize("change", [lambda p: with_batch(p, 0.5), lambda p: share_of_batch(p, 0.5)])
def test_half_a_batch_has_half_of_what_grows(name: str, change: Callable[..., Profile]) -> None:
    profile = profile_with(name)
    before, after = getattr(profile, name), getattr(change(profile), name)
    if not OP_COLUMNS[name].grows:
        assert np.array_equal(before, after)
    elif name == "time_us":
        assert (after[1:] < before[1:]).all()
    else:
        assert np.array_equal(after[1:], before[1:] / 2)


def test_what_nothing_is_said_of_has_its_default() -> None:
    profile = make_profile("plain", op_names=["a", "b"], time_us=[[1, 1]] * 2)
    for name, column in OP_COLUMNS.items():
        if name != "time_us":
            assert all(map(column.is_default, getattr(profile, name)))


def test_files_from_before_a_column_open(tmp_path: Path) -> None:
    """A file has no trace of columns that say nothing, so it is one of an older version."""
    plain = make_profile("plain", op_names=["a"], op_types=["Relu"], time_us=[[1, 1]])
    write_profile(tmp_path / "p.enplace", plain)
    with zipfile.ZipFile(tmp_path / "p.enplace") as archive:
        names = set(json.loads(archive.read("profile.json")))
        names |= {name.removesuffix(".npy") for name in np.load(archive.open("profile.npz")).files}
    assert {name for name in OP_COLUMNS if name not in names} == {
        name for name, column in OP_COLUMNS.items() if not column.always
    }
    assert read_profile(tmp_path / "p.enplace").kinds == ("elementwise",)


def test_a_text_that_is_none_of_the_choices_is_refused() -> None:
    with pytest.raises(ProfileError, match=r"op 'a': 'pass' must be one of forward, .* 'sideways'"):
        make_profile("plain", op_names=["a"], time_us=[[1, 1]], op_passes=["sideways"])


def test_a_column_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="no column 'weight'"):
        make_profile("plain", op_names=["a"], time_us=[[1, 1]], weight=[3])


def test_the_schema_of_the_text_form_describes_all_columns() -> None:
    text = (files("enplace_resources") / "profile.schema.json").read_text(encoding="utf-8")
    fields = json.loads(text)["properties"]["ops"]["items"]["properties"]
    assert set(fields) == {"name", *(column.key for column in OP_COLUMNS.values())}
    for column in OP_COLUMNS.values():
        field = fields[column.key]
        assert field["description"] == column.description
        if column.type is int or (column.type is float and not column.width):
            assert (field["minimum"], field["maximum"]) == (0, column.most)
        assert field.get("enum", []) == (
            [*column.choices, column.default] if column.choices else []
        )
