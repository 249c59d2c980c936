"""Written files read back the same, and bad ones are refused in one line."""

import contextlib
import gzip
import io
import json
import random
import re
import stat
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files as resource_files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from enplace.bounds import claim_text, dated_note
from enplace.errors import EnplaceError, FileError, PlanError
from enplace.files import fields, json_text, reading
from enplace.files.writing import write_atomically
from enplace.machine import simulate
from enplace.readers import (
    Project,
    archive,
    complete_plan,
    constrain,
    read_plan,
    read_plan_cluster,
    read_profile,
    read_project,
)
from enplace.text import ms
from enplace.values.constraints import Constraints
from enplace.values.limits import MAX_BYTES, MAX_NAME
from enplace.values.plan import Plan, check_plan
from enplace.values.problem import Problem
from enplace.values.profile import Profile
from enplace.values.result import Result
from enplace.writers import write_plan, write_profile, write_project
from inputs import put, text_form
from problems import cluster_of, plan_of, planned_problems, profile_of, profiles

PROFILE = profile_of(
    {"in": 1.0, "left": 2.0, "right": 2.0, "out": 1.0},
    [("in", "left", 8), ("in", "right", 8), ("left", "out", 4), ("right", "out", 4)],
    control=[("left", "right")],
    persistent={"left": 100},
    colocation={"left": "g", "out": "g"},
    cpu={"in": 3.0},
)
PROBLEM = Problem(PROFILE, cluster_of(2))
PLAN = plan_of(PROBLEM, {"in": 0, "left": 0, "right": 1, "out": 0})

one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def same(a: Profile, b: Profile) -> bool:
    return all(
        np.array_equal(x, y, equal_nan=x.dtype.kind == "f") if isinstance(x, np.ndarray) else x == y
        for x, y in ((value, getattr(b, key)) for key, value in vars(a).items() if key in FIELDS)
    )


FIELDS = set(Profile.__dataclass_fields__)


def schema(name: str) -> Any:
    return json.loads((resource_files("enplace_resources") / f"{name}.schema.json").read_bytes())


@one_folder
@given(profile=profiles())
@pytest.mark.parametrize("suffix", [".enplace", ".json"])
def test_a_written_profile_reads_back_the_same(
    tmp_path: Path, suffix: str, profile: Profile
) -> None:
    path = tmp_path / f"profile{suffix}"
    write_profile(path, profile)
    assert same(profile, read_profile(path))


def test_the_format_is_recognised_by_content_not_by_name(tmp_path: Path) -> None:
    write_profile(tmp_path / "a.enplace", PROFILE)
    odd = (tmp_path / "a.enplace").rename(tmp_path / "a.json")
    assert same(read_profile(odd), PROFILE)


def test_the_same_profile_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.enplace", "b.enplace"):
        write_profile(tmp_path / name, PROFILE)
    assert (tmp_path / "a.enplace").read_bytes() == (tmp_path / "b.enplace").read_bytes()


def test_the_text_form_follows_its_schema(tmp_path: Path) -> None:
    write_profile(tmp_path / "p.json", PROFILE)
    data = json.loads((tmp_path / "p.json").read_text())
    jsonschema.validate(data, schema("profile"))
    assert data["ops"][1]["time_us"] == {"gpu": 2.0}
    assert data["edges"][0] == {
        "src": "in", "output": 0, "dst": "left", "bytes": 8, "control": False,
    }  # fmt: skip


def test_a_file_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    write_atomically(target, "old")
    with pytest.raises(FileError, match="cannot write"):
        write_atomically(tmp_path / "missing" / "plan.json", "new")
    write_atomically(target, "new")
    assert target.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert not target.stat().st_mode & stat.S_IXUSR


def test_writing_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "text"


# The open text form, written by hand


def read_text_form(tmp_path: Path, data: Any) -> Profile:
    path = tmp_path / "hand.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return read_profile(path)


def test_fields_missing_from_the_text_form_have_defaults(tmp_path: Path) -> None:
    profile = read_text_form(tmp_path, text_form())
    assert profile.scopes == ("net", "")
    assert profile.tensor_output.tolist() == [0]
    assert profile.persistent_bytes.tolist() == [0, 0]
    assert np.isnan(profile.time_us[0, 1])
    assert profile.colocation == ("", "")


def test_control_edges_need_no_bytes(tmp_path: Path) -> None:
    data = text_form()
    data["edges"] = [{"src": "net/a", "dst": "b", "control": True}]
    assert read_text_form(tmp_path, data).tensor_output.tolist() == [-1]


def test_overlapping_colocation_groups_are_merged(tmp_path: Path) -> None:
    data = text_form()
    data["ops"].append({"name": "c", "time_us": {"gpu": 1}, "colocation": "x"})
    data["ops"][0]["colocation"] = ["x", "y"]
    data["ops"][1]["colocation"] = ["y"]
    profile = read_text_form(tmp_path, data)
    assert len(set(profile.colocation)) == 1
    assert profile.colocation[0] != ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("ops", 1, "name", "net/a"), "ops: two are called \"net/a\""),
        (put("ops", 1, 7), r"ops\[1\]: must be an object, not 7"),
        (put("ops", 1, {}), r"ops\[1\]: 'name' is missing"),
        (put("ops", 0, "time_us", {"tpu": 1}), r"ops\[0\]\.time_us: 'tpu' means nothing here"),
        (put("ops", 0, "time_us", {"gpu": -1}), r"ops\[0\]\.time_us\.gpu: must be a number from 0"),
        (put("ops", 0, "time_us", {"gpu": float("nan")}), r"ops\[0\]\.time_us\.gpu: .* not NaN"),
        (put("ops", 0, "time_us", {"gpu": 1e300}), r"ops\[0\]\.time_us\.gpu"),
        (put("ops", 0, "time_us", {"gpu": True}), r"ops\[0\]\.time_us\.gpu: .* not true"),
        (put("ops", 0, "time_us", {}), "op 'net/a' has a time on neither gpu nor cpu"),
        (put("ops", 0, "persistant_bytes", 1), "'persistant_bytes' .*mean 'persistent_bytes'"),
        (put("edges", 0, "size", 1), r"edges\[0\]: 'size' means nothing here"),
        (put("cluster", {}), "'cluster' means nothing here"),
        (put("name", "x" * 100_001), "the model's name has over 100000 characters"),
        (put("ops", 0, "persistent_bytes", 1.5), r"ops\[0\]\.persistent_bytes: .* whole number"),
        (put("ops", 0, "persistent_bytes", 2**70), r"ops\[0\]\.persistent_bytes: must be"),
        (put("ops", 0, "colocation", 3), r"ops\[0\]\.colocation: must be a text"),
        (put("ops", 0, "scope", 5), r"ops\[0\]\.scope: must be a text, not 5"),
        (put("ops", 0, "name", None), r"ops\[0\]: 'name' is missing"),
        (put("ops", []), r"edges\[0\]\.src: there is no op"),
        (put("ops", {}), "ops: must be a list"),
        (put("edges", 0, "dst", "z"), r"edges\[0\]\.dst: there is no op \"z\""),
        (put("edges", 0, "bytes", -4), r"edges\[0\]\.bytes: must be"),
        (put("edges", 0, {"src": "net/a", "dst": "b"}), r"edges\[0\]: 'bytes' is missing"),
        (put("edges", 0, "control", "no"), r"edges\[0\]\.control: must be true or false"),
        (put("edges", 0, "dst", "net/a"), "consumes its own output"),
        (put("format", "enplace-profile/9"), r"newer Enplace \(format 9.*update"),
        (put("format", 9), "'format' is 9"),
        (put("measured", []), "measured: must be an object"),
        (put("measured", {"source": {"framework_name": ["x"]}}), "framework_name: must be a text"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_text_form_is_located_in_one_line(
    tmp_path: Path, change: Callable[[Any], None], message: str
) -> None:
    data = text_form()
    change(data)
    with pytest.raises(EnplaceError, match=message) as caught:
        read_text_form(tmp_path, data)
    assert str(caught.value).startswith(str(tmp_path / "hand.json"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: not valid JSON"),
        ('{"ops": [', "line 1, column 10: not valid JSON"),
        ("[1, 2]", "holds no graph"),
        ('{"format": "enplace-cluster/1"}', "holds no graph .its format is"),
        ("[" * 100000, "nesting too deep"),
        ('{"ops": ' + "9" * 5000 + "}", "number is too long"),
    ],
)
def test_text_that_is_not_a_profile_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        read_text_form(tmp_path, text)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"\x1f\x8b broken", b"\x1f\x8b\x08\0\0\0\0\0\0\3"]
)
def test_bytes_that_are_not_a_profile_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    with pytest.raises(FileError, match=str(path)):
        read_profile(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.enplace", tmp_path):
        with pytest.raises(FileError, match="cannot read"):
            read_profile(path)


# Hostile archives


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.fixture
def valid_archive(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    path = tmp_path / "p.enplace"
    write_profile(path, PROFILE)
    return path, members_of(path)


@pytest.mark.parametrize("missing", ["enplace.json", "profile.json", "profile.npz"])
def test_a_missing_member_is_named(
    valid_archive: tuple[Path, dict[str, bytes]], missing: str
) -> None:
    path, members = valid_archive
    del members[missing]
    pack(path, members)
    with pytest.raises(FileError, match=rf"p\.enplace: '{missing}' is missing"):
        read_profile(path)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "extra.json", "a\\b"])
def test_an_unexpected_member_is_refused(
    valid_archive: tuple[Path, dict[str, bytes]], name: str
) -> None:
    path, members = valid_archive
    pack(path, members | {name: b"x"})
    with pytest.raises(FileError, match="which does not belong here"):
        read_profile(path)
    assert [p.name for p in path.parent.iterdir()] == ["p.enplace"]


def test_a_zip_bomb_is_refused_before_it_is_unpacked(
    valid_archive: tuple[Path, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, members = valid_archive
    monkeypatch.setattr(reading, "SMALL_BYTES", 1 << 20)
    pack(path, members | {"profile.json": b" " * (4 << 20)})
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("unpacked the bomb"))
    with pytest.raises(FileError, match="do not trust it"):
        read_profile(path)


@pytest.mark.parametrize(
    "bomb",
    [
        b'{"ops": [' + b"{}," * 100_000 + b"{}]}",
        b'{"ops": [' + b"[]," * 100_000 + b"[]]}",
        b'{"ops": [' + b"0.5," * 200_000 + b"1]}",
        b'{"ops": {' + b",".join(b'"%x":1' % i for i in range(100_000)) + b"}}",
        b'{"ops": "' + "\U0001f600".encode() + b"a" * 800_000 + b'"}',
        b'{"ops": "\\ud83d\\ude00' + b"a" * 800_000 + b'"}',
        b'{"ops": "' + rb"a,\"" * 1_000_000 + b'"}',
    ],
    ids=["objects", "lists", "numbers", "keys", "wide", "escaped", "quotes"],
)
def test_json_that_takes_much_memory_is_refused_before_it_is_parsed(
    valid_archive: tuple[Path, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch, bomb: bytes
) -> None:
    path, members = valid_archive
    pack(path, members | {"profile.json": bomb})
    plain, packed = path.with_suffix(".json"), path.with_suffix(".json.gz")
    plain.write_bytes(bomb)
    packed.write_bytes(gzip.compress(bomb))
    monkeypatch.setattr(json_text, "SMALL_JSON_BYTES", 100_000)
    monkeypatch.setattr(json_text.parse_json, "__defaults__", (1 << 20,))
    monkeypatch.setattr(json_text.json, "loads", refuse_large(json_text.json.loads))
    for each in (path, plain, packed):
        with pytest.raises(FileError, match="MiB of memory, far more than any real file"):
            read_profile(each)


def test_large_json_within_its_memory_is_read_and_its_faults_are_located(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_text, "SMALL_JSON_BYTES", 0)
    assert json_text.parse_json(b'{"ops": [1, 2]}') == {"ops": [1, 2]}
    with pytest.raises(FileError, match="line 1, column 14: not valid JSON"):
        json_text.parse_json(b'{"ops": [1, 2')


def test_small_json_takes_little_memory_whatever_it_holds() -> None:
    """Only larger JSON is parsed in a process with little memory first."""
    content = b"[" + b'{"":{}},' * (1 << 17) + b"1]"
    tracemalloc.start()
    try:
        json_text.parse_json(content)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes / len(content) * json_text.SMALL_JSON_BYTES < json_text.LITTLE_MEMORY_BYTES


def test_an_endless_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(b'{"ops": [], "edges": [], "name": "' + b"a" * 7_000_000 + b'"}')
    with pytest.raises(FileError, match="name: a text of 7,000,000 characters; shorten it"):
        read_profile(path)


def refuse_large(loads: Callable[..., Any]) -> Callable[..., Any]:
    """Return a parser that fails the test on a large text."""

    def parse(text: str, **rest: Any) -> Any:
        assert len(text) < 100_000
        return loads(text, **rest)

    return parse


@pytest.mark.parametrize("size", [100, 300 << 20])
def test_a_file_of_zeros_is_refused_without_being_parsed(tmp_path: Path, size: int) -> None:
    path = tmp_path / "sparse.json"
    with open(path, "wb") as file:
        file.truncate(size)
    with pytest.raises(FileError, match=r"larger than 256 MiB|begins with neither"):
        read_profile(path)


def test_what_begins_like_a_zip_and_is_none_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.enplace"
    with open(path, "wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(300 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match="larger than 256 MiB"):
            read_project(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10 << 20


@pytest.mark.parametrize("member", ["profile", "plans"])
def test_arrays_that_grow_in_memory_are_refused_before_they_are_read(
    valid_archive: tuple[Path, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch, member: str
) -> None:
    """A byte in the file is eight in memory."""
    path, members = valid_archive
    monkeypatch.setattr(archive, "MAX_MEMORY_BYTES", 8 << 20)
    names = ("edge_op", "device_0") if member == "profile" else ("device_0", "position_0")
    bomb = io.BytesIO()
    np.savez(bomb, **dict.fromkeys(names, np.zeros(1 << 20, np.uint8)))
    pack(path, members | {"project.json": b"{}", f"{member}.npz": bomb.getvalue()})
    with pytest.raises(FileError, match=r"would take over 8\.0 MiB of memory"):
        read_project(path)


def test_a_project_with_a_million_plans_is_refused(
    valid_archive: tuple[Path, dict[str, bytes]],
) -> None:
    path, members = valid_archive
    bomb = {"project.json": b'{"plans": [' + b"0," * 6000 + b"0]}"}
    pack(path, members | bomb | {"plans.npz": b"PK\x05\x06" + bytes(18)})  # an empty zip
    with pytest.raises(FileError, match="holds 6001 plans"):
        read_project(path)


def test_gzip_is_not_unpacked_further_than_an_honest_file_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SMALL_BYTES", 1 << 20)
    path = tmp_path / "p.json.gz"
    path.write_bytes(gzip.compress(b" " * (4 << 20)))
    with pytest.raises(FileError, match=r"unpacks from \d+ to over 1048576 bytes"):
        read_profile(path)


def test_a_zip_in_a_zip_counts_as_the_whole_file(
    valid_archive: tuple[Path, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, members = valid_archive
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("time_us.npy", bytes(8 << 20))
        packed.writestr("edge_op.npy", random.Random(0).randbytes(99))
    monkeypatch.setattr(reading, "SMALL_BYTES", 1 << 20)
    monkeypatch.setattr(reading, "MAX_RATIO", 900)
    pack(path, members | {"profile.npz": inner.getvalue()})
    with pytest.raises(FileError, match=r"profile\.npz: unpacks from"):
        read_profile(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_only_the_usual_packing_is_read(
    valid_archive: tuple[Path, dict[str, bytes]], method: int
) -> None:
    path, members = valid_archive
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(FileError, match="packed in an unusual way"):
        read_profile(path)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f8', 'fortran_order': False, 'shape': __import__('os'), }",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (" + b"9" * 5000 + b",), }",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (((((",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (3, 2), }",
        b"\x00(((",
    ],
)
def test_the_header_of_an_array_is_not_evaluated(
    valid_archive: tuple[Path, dict[str, bytes]], header: bytes
) -> None:
    path, members = valid_archive
    body = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n" + bytes(48)
    inner = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(members["profile.npz"])) as old:
        arrays = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(inner, "w") as packed:
        for name, content in (arrays | {"time_us.npy": body}).items():
            packed.writestr(name, content)
    pack(path, members | {"profile.npz": inner.getvalue()})
    with pytest.raises(FileError, match=r"time_us\.npy (is not an array|has a wrong type)"):
        read_profile(path)


def test_the_first_of_many_keys_given_twice_is_found(tmp_path: Path) -> None:
    keys = [f'"k{i}": 0' for i in range(200_000)]
    (tmp_path / "p.json").write_text("{" + ", ".join([*keys, '"k7": 1']) + "}")
    with pytest.raises(FileError, match='holds "k7" twice'):
        read_profile(tmp_path / "p.json")


def test_every_truncation_is_refused(valid_archive: tuple[Path, dict[str, bytes]]) -> None:
    path, _ = valid_archive
    content = path.read_bytes()
    for end in range(2, len(content), 97):
        path.write_bytes(content[:end])
        with pytest.raises(FileError):
            read_profile(path)


def test_flipped_bytes_never_cause_a_traceback(
    valid_archive: tuple[Path, dict[str, bytes]],
) -> None:
    path, _ = valid_archive
    content = bytearray(path.read_bytes())
    for at in range(2, len(content), 13):
        broken = content.copy()
        broken[at] ^= 0xFF
        path.write_bytes(broken)
        with contextlib.suppress(EnplaceError):
            assert same(read_profile(path), PROFILE)


def test_a_newer_format_is_refused_with_a_remedy(
    valid_archive: tuple[Path, dict[str, bytes]],
) -> None:
    path, members = valid_archive
    pack(path, members | {"enplace.json": b'{"format": "enplace/99"}'})
    with pytest.raises(FileError, match=r"written by a newer Enplace \(format 99.*update Enplace"):
        read_profile(path)


def arrays_of(members: dict[str, bytes]) -> dict[str, Any]:
    with np.load(io.BytesIO(members["profile.npz"]), allow_pickle=False) as loaded:
        return dict(loaded)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("time_us", np.zeros((4, 3))),
        ("time_us", np.zeros((2, 2))),
        ("time_us", np.zeros((4, 2), dtype=np.float32)),
        ("edge_op", np.array(["a", "b"])),
        ("edge_op", np.zeros((5, 1), dtype=np.int64)),
        ("edge_op", np.zeros(1, dtype=np.int64)),
        ("edge_tensor", np.full(5, 99)),
        ("tensor_op", np.array([-1, 0, 1, 2])),
        ("tensor_bytes", np.zeros(1, dtype=np.int64)),
        ("tensor_output", np.array([0, 0, 0, -7])),
        ("persistent_bytes", np.array([1, 2, 3, -4])),
    ],
)
def test_inconsistent_arrays_are_refused(
    valid_archive: tuple[Path, dict[str, bytes]], key: str, value: Any
) -> None:
    path, members = valid_archive
    pack(path, members | {"profile.npz": npz(**arrays_of(members) | {key: value})})
    with pytest.raises(EnplaceError, match=r"p\.enplace: "):
        read_profile(path)


def test_an_array_shorter_than_its_header_is_refused(
    valid_archive: tuple[Path, dict[str, bytes]],
) -> None:
    path, members = valid_archive
    arrays = arrays_of(members)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as inner:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array)
            content = member.getvalue()
            if name == "edge_op":
                content = content.replace(b"(5,)", b"(9999999999,)").replace(b" " * 9, b"", 1)
            inner.writestr(f"{name}.npy", content)
    pack(path, members | {"profile.npz": buffer.getvalue()})
    with pytest.raises(FileError, match=r"edge_op\.npy"):
        read_profile(path)


def test_pickles_are_not_loaded(valid_archive: tuple[Path, dict[str, bytes]]) -> None:
    path, members = valid_archive
    evil = npz(**arrays_of(members) | {"edge_op": np.array([{}, {}, {}, {}, {}], dtype=object)})
    pack(path, members | {"profile.npz": evil})
    with pytest.raises(FileError, match=r"edge_op\.npy has a wrong type"):
        read_profile(path)


# Projects


@one_folder
@given(case=planned_problems())
def test_a_written_project_reads_back_the_same(tmp_path: Path, case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    constraints = Constraints(
        pins={0: int(plan.device[0])},
        together=((0,),),
        forbidden=frozenset({(0, 1)}),
        before=((0, 0),),
        locked=frozenset({1}),
    )
    project = Project(
        problem.profile,
        problem.cluster,
        constraints,
        plans=(("first", plan), ("second", plan)),
        view={"zoom": 2.5},
    )
    path = tmp_path / "project.enplace"
    write_project(path, project)
    back = read_project(path)
    assert same(back.profile, problem.profile)
    assert same(read_profile(path), problem.profile)
    assert (back.cluster, back.constraints) == (problem.cluster, constraints)
    assert back.view == {"zoom": 2.5}
    assert [name for name, _ in back.plans] == ["first", "second"]
    write_project(tmp_path / "stored.enplace", project, packed=False)
    assert same(read_project(tmp_path / "stored.enplace").profile, problem.profile)
    for _, read in back.plans:
        assert read.device.tolist() == plan.device.tolist()
        assert read.position.tolist() == plan.position.tolist()
        assert (read.method, read.policy, read.links) == (plan.method, plan.policy, plan.links)


def test_a_profile_is_a_project_without_plans(tmp_path: Path) -> None:
    write_profile(tmp_path / "p.enplace", PROFILE)
    project = read_project(tmp_path / "p.enplace")
    assert project.plans == ()
    assert project.cluster is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("pins", [[99, 0]], r"pins\[0\]\.op: must be a number from 0 to 3"),
        ("pins", [5], r"pins\[0\]: must be an op and a device"),
        ("cluster", {"devices": []}, "has 0 devices"),
        ("plans", [{"name": "x"}], "device_0.npy' is missing"),
        ("together", 5, "together: must be a list"),
        ("together", [5], r"together\[0\]: must be a list"),
        ("before", [[0]], r"before\[0\]: must be two ops"),
        ("before", [[0, 99]], r"before\[0\]\.op: must be a number from 0 to 3"),
    ],
)
def test_a_damaged_project_is_refused(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    path = tmp_path / "p.enplace"
    write_project(path, Project(PROFILE))
    members = members_of(path)
    data = json.loads(members["project.json"]) | {key: value}
    pack(path, members | {"project.json": json.dumps(data).encode()})
    with pytest.raises(EnplaceError, match=message):
        read_project(path)


# Plans


@one_folder
@given(case=planned_problems())
def test_a_written_plan_reads_back_the_same(tmp_path: Path, case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    path = tmp_path / "plan.json"
    write_plan(path, Result(simulate(problem, plan)))
    back = read_plan(path, problem)
    assert (back.missing, back.unknown, back.same_graph) == ([], [], True)
    assert back.plan.device.tolist() == plan.device.tolist()
    assert back.plan.position.tolist() == plan.position.tolist()
    assert (back.plan.policy, back.plan.links) == (plan.policy, plan.links)
    assert read_plan_cluster(path) == problem.cluster


def write(tmp_path: Path, problem: Problem = PROBLEM, plan: Plan = PLAN) -> Path:
    path = tmp_path / "plan.json"
    write_plan(path, Result(simulate(problem, plan)))
    return path


def test_replicas_are_kept_in_the_file(tmp_path: Path) -> None:
    plan = replace(plan_of(PROBLEM, dict.fromkeys(PROFILE.op_names, 0)), replicas=((0, 1),))
    path = tmp_path / "plan.json"
    write_plan(path, Result(simulate(PROBLEM, plan)))
    jsonschema.validate(json.loads(path.read_text()), schema("plan"))
    assert read_plan(path, PROBLEM).plan.replicas == ((0, 1),)
    write_plan(path, Result(simulate(PROBLEM, PLAN)))
    assert "replicas" not in json.loads(path.read_text())
    assert read_plan(path, PROBLEM).plan.replicas == ()


@pytest.mark.parametrize(
    ("replicas", "complaint"),
    [
        ("GPU:0", "replicas: must be a list"),
        ([["GPU:0"]], r"replicas\[0\]: must be a list of at least two devices"),
        ([["GPU:0", "GPU:7"]], r"replicas\[0\]: cluster 'hand' has no device"),
        ([["GPU:0", 1]], r"replicas\[0\]: cluster 'hand' has no device"),
    ],
)
def test_spoilt_replicas_are_refused(tmp_path: Path, replicas: Any, complaint: str) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, Result(simulate(PROBLEM, PLAN)))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"replicas": replicas}))
    with pytest.raises(FileError, match=complaint):
        read_plan(path, PROBLEM)


def test_ops_on_a_replica_device_are_refused() -> None:
    with pytest.raises(PlanError, match="op 'right' is on a device that only holds copies"):
        check_plan(PROBLEM, replace(PLAN, replicas=((0, 1),)))
    with pytest.raises(PlanError, match="named twice"):
        check_plan(PROBLEM, replace(PLAN, replicas=((0, 0),)))


def test_a_plan_file_follows_its_schema_and_contains_the_prediction(tmp_path: Path) -> None:
    pinned = Problem(PROFILE, PROBLEM.cluster, Constraints(pins={2: 1}))
    path = write(tmp_path, pinned)
    data = json.loads(path.read_text())
    jsonschema.validate(data, schema("plan"))
    assert data["profile"]["fingerprint"] == PROFILE.fingerprint
    assert data["predicted"]["step_time_us"] == simulate(pinned, PLAN).makespan_us
    assert data["pins"] == {"right": "GPU:1"}
    assert read_plan(path, pinned).constraints["pin"] == [("right", "GPU:1")]


def test_a_note_in_a_plan_file_is_of_its_own_machine_however_fast_the_plan_is(
    tmp_path: Path,
) -> None:
    alone = plan_of(PROBLEM, dict.fromkeys(PROFILE.op_names, 0))
    plan = replace(alone, note="the best of 3: 1.6 ms", noted_for=PROBLEM.costs_digest)
    links = replace(PROBLEM, cluster=PROBLEM.cluster.scaled(links=2.0))
    for problem in (PROBLEM, links):
        path = write(tmp_path, problem, replace(plan, noted_us=60.0))
        own, other = (simulate(each, read_plan(path, each).plan) for each in (PROBLEM, links))
        assert own.makespan_us == other.makespan_us
        assert dated_note(own, own.plan.note) == "The best of 3: 1.6 ms."
        told = f"Found for other costs or memory, where it took {ms(60)}: The best of 3: 1.6 ms."
        assert dated_note(other, other.plan.note) == told


def test_a_plan_file_carries_every_constraint_and_older_files_have_none(tmp_path: Path) -> None:
    ops = {"right": 2, "out": 3}
    problem = Problem(
        PROFILE,
        PROBLEM.cluster,
        Constraints(
            pins={0: 1},
            together=((ops["right"], ops["out"]),),
            forbidden=frozenset({(ops["right"], 1)}),
            locked=frozenset({1}),
        ),
    )
    problem = problem.constrained(before=[(0, 3)])
    path = write(tmp_path, problem, plan_of(problem, {"in": 1, "left": 0, "right": 0, "out": 0}))
    data = json.loads(path.read_text())
    jsonschema.validate(data, schema("plan"))
    assert data["forbid"] == [["right", "GPU:1"]]
    assert data["colocate"] == [["right", "out"]]
    assert data["lock"] == [["GPU:1"]]
    back = constrain(PROBLEM, read_plan(path, PROBLEM).constraints)
    assert (back.problem.pins, back.problem.together) == (problem.pins, problem.together)
    assert (back.problem.forbidden, back.problem.locked) == (problem.forbidden, problem.locked)
    assert (back.problem.before, back.unknown) == (problem.before, ())
    for kind in ("forbid", "colocate", "lock", "before"):
        del data[kind]
    path.write_text(json.dumps(data))
    older = read_plan(path, PROBLEM).constraints
    assert older == {"pin": [("in", "GPU:1")]}


def test_moving_one_op_changes_one_line_of_the_ops(tmp_path: Path) -> None:
    before = write(tmp_path).read_text().splitlines()
    moved = plan_of(PROBLEM, {"in": 1, "left": 0, "right": 1, "out": 0})
    after = write(tmp_path, plan=moved).read_text().splitlines()
    changed = [line for line, old in zip(after, before, strict=True) if line != old]
    assert [line for line in changed if '"op"' in line] == ['    {"device": "GPU:1", "op": "in"},']


def test_a_plan_of_another_graph_is_refused_with_missing_and_new_ops(tmp_path: Path) -> None:
    path = write(tmp_path)
    other = profile_of(
        {"in": 1.0, "right": 2.0, "extra": 2.0, "out": 1.0},
        [("in", "right", 8), ("right", "extra", 8), ("extra", "out", 4)],
    )
    problem = Problem(other, PROBLEM.cluster)
    file = read_plan(path, problem)
    assert (file.missing, file.unknown, file.same_graph) == (["extra"], ["left"], False)
    plan = complete_plan(problem, file)
    check_plan(problem, plan)
    assert plan.device.tolist() == [0, 1, 1, 0]
    assert np.argsort(plan.position).tolist() == [0, 1, 2, 3]


@given(case=planned_problems())
@one_folder
def test_a_completed_plan_keeps_its_placements_and_is_valid(
    tmp_path: Path, case: tuple[Problem, Plan]
) -> None:
    problem, plan = case
    path = write(tmp_path, problem, plan)
    data = json.loads(path.read_text())
    data["ops"] = data["ops"][::2]
    path.write_text(json.dumps(data))
    file = read_plan(path, problem)
    full = complete_plan(problem, file)
    kept = file.plan.device >= 0
    assert full.device[kept].tolist() == plan.device[kept].tolist()
    assert simulate(problem, full).makespan_us >= 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("ops", 1, "op", "in"), r"ops\[1\]: op \"in\" is placed twice"),
        (put("ops", 0, "device", "GPU:9"), r"ops\[0\]: cluster 'hand' has no device \"GPU:9\""),
        (put("ops", 0, {"op": "in"}), r"ops\[0\]: 'device' is missing"),
        (put("ops", 0, "device", 1), r"ops\[0\]\.device: must be a text"),
        (put("ops", "all"), "ops: must be a list"),
        (put("pins", {"in": "TPU"}), "pins: cluster 'hand' has no device"),
        (put("policy", "random"), "policy 'random'"),
        (put("format", "enplace-plan/2"), "newer Enplace"),
        (put("format", "enplace-profile/1"), "choose another file"),
    ],
)
def test_a_mistake_in_a_plan_file_is_located(
    tmp_path: Path, change: Callable[[Any], None], message: str
) -> None:
    path = write(tmp_path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(EnplaceError, match=message) as caught:
        read_plan(path, PROBLEM)
    assert str(caught.value).startswith(str(path))


def test_a_project_that_packs_too_well_is_written_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans that are alike pack like a bomb, which no reader takes."""
    monkeypatch.setattr(reading, "SMALL_BYTES", 1 << 10)
    monkeypatch.setattr(reading, "MAX_RATIO", 3)
    monkeypatch.setattr(reading, "LARGE_RATIO", 3)
    plan = plan_of(PROBLEM, dict.fromkeys(PROFILE.op_names, 0))
    plans = tuple((f"plan {i}", plan) for i in range(50))
    write_project(tmp_path / "p.enplace", Project(PROFILE, plans=plans))
    assert len(read_project(tmp_path / "p.enplace").plans) == 50


def test_a_project_that_could_not_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.enplace"
    write_project(path, Project(PROFILE))
    before = path.read_bytes()
    plan = plan_of(PROBLEM, dict.fromkeys(PROFILE.op_names, 0))
    many = Project(PROFILE, plans=tuple((f"plan {i}", plan) for i in range(5001)))
    with pytest.raises(FileError, match="holds 5,001 plans; remove some"):
        write_project(path, many)
    monkeypatch.setattr(archive, "MAX_MEMORY_BYTES", 0)
    with pytest.raises(FileError, match="too large to be read again"):
        write_project(path, Project(PROFILE))
    assert path.read_bytes() == before


def test_a_file_proves_nothing(tmp_path: Path) -> None:
    """It may be a stranger's."""
    device = np.zeros(PROFILE.n_ops, dtype=np.int64)
    lie = Plan(
        device,
        np.arange(PROFILE.n_ops),
        "mine",
        objective="throughput",
        value_us=1.0,
        bound_us=1.0,
        proven=True,
    )
    write_project(tmp_path / "p.enplace", Project(PROFILE, plans=(("lie", lie),)))
    ((_, plan),) = read_project(tmp_path / "p.enplace").plans
    assert (plan.proven, plan.bound_us, plan.rivals, plan.note) == (False, None, None, "")
    problem = Problem(PROFILE, cluster_of(2))
    write_plan(tmp_path / "x.plan.json", Result(simulate(problem, lie)))
    found = complete_plan(problem, read_plan(tmp_path / "x.plan.json", problem))
    assert claim_text(simulate(problem, found), None) == "", "it has another value"
    write_plan(
        tmp_path / "x.plan.json", Result(simulate(problem, replace(lie, value_us=found.value_us)))
    )
    found = complete_plan(problem, read_plan(tmp_path / "x.plan.json", problem))
    assert claim_text(simulate(problem, found), None) == "Proven best, says its file."


def test_a_bound_that_only_a_search_could_prove_is_named_as_the_files(tmp_path: Path) -> None:
    problem, file = Problem(PROFILE, cluster_of(2)), tmp_path / "x.plan.json"
    plan = plan_of(problem, dict.fromkeys(PROFILE.op_names, 0))
    step_us = simulate(problem, plan).makespan_us
    bound_us, claimed = step_us / 2, f"Not below {ms(step_us / 2)}, says its file."

    def kept(problem: Problem, plan: Plan, bound_us: float = bound_us, by: str = "") -> Plan:
        write_plan(file, Result(simulate(problem, plan), bound_us, by))
        return complete_plan(problem, read_plan(file, problem))

    def said(problem: Problem, plan: Plan, known_us: float = 0.0) -> str:
        return claim_text(simulate(problem, plan), known_us)

    known = kept(problem, plan, by="CP-SAT")
    assert (known.bound_us, known.note, said(problem, known)) == (None, "", claimed)
    assert said(problem, kept(problem, known)) == claimed, "exported again"
    assert said(problem, known, known_us=bound_us) == "", "that is shown anyway"
    assert said(problem, kept(problem, plan)) == "", "what anyone can repeat is shown anyway"
    assert said(problem, kept(problem, plan, 2 * step_us, "CP-SAT")) == "", "the plan disproves it"
    pinned = problem.constrained(pins={0: 0})
    assert said(pinned, known) == claimed, "a constraint only removes plans"
    of_pinned = kept(pinned, plan, by="CP-SAT")
    assert (said(pinned, of_pinned), said(problem, of_pinned)) == (claimed, "")
    for other in (
        cluster_of(3),
        problem.cluster.scaled(1.0, 6.2),
        problem.cluster.scaled(0.9, 1.0),
    ):
        elsewhere = Problem(PROFILE, other)
        assert said(elsewhere, known) == "", "it was said of another cluster"
        again = kept(elsewhere, known)
        assert (said(elsewhere, again), again.claim) == ("", None), "nor is it exported"


@pytest.mark.parametrize("largest", [200, 70_000, 1 << 40])
def test_whole_numbers_take_no_more_room_than_they_need(tmp_path: Path, largest: int) -> None:
    profile = replace(PROFILE, persistent_bytes=np.array([0, 0, 0, largest]))
    write_profile(tmp_path / "p.enplace", profile)
    found = read_profile(tmp_path / "p.enplace")
    np.testing.assert_array_equal(found.persistent_bytes, profile.persistent_bytes)
    assert found.persistent_bytes.dtype == np.int64


def test_an_endless_name_is_refused_before_it_is_looked_at(
    valid_archive: tuple[Path, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, members = valid_archive
    monkeypatch.setattr(fields, "MAX_TEXT_LENGTH", 100)
    data = json.loads(members["profile.json"]) | {"name": "a" * 101}
    pack(path, members | {"profile.json": json.dumps(data).encode()})
    with pytest.raises(FileError, match="name: a text of 101 characters; shorten it"):
        read_profile(path)


def test_the_schema_allows_what_the_reader_allows() -> None:
    text = json.dumps(schema("profile"))
    assert {int(n) for n in re.findall(r'"maxLength": (\d+)', text)} == {MAX_NAME}
    assert max(int(n) for n in re.findall(r'"maximum": (\d+)', text)) == MAX_BYTES
