"""No file matches more than one reader."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from enplace.errors import FileError
from enplace.readers import read_profile, readers
from enplace.readers.registry import Content, Reader, make_content, reader, registered
from enplace.readers.samples import samples
from enplace.writers import write_profile


def matching(content: Content) -> list[str]:
    return [name for name, reader in readers().items() if reader.matches(content)]


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.name)
def test_each_sample_matches_one_reader(sample: Any, tmp_path: Path) -> None:
    data = sample.path.read_bytes()
    assert matching(make_content(data, sample.path.name)) == ["enplace"]
    write_profile(tmp_path / "p.json", read_profile(sample.path))
    text = (tmp_path / "p.json").read_bytes()
    assert matching(make_content(text, "p.json")) == ["text-form"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"ops": []}, "text-form"),
        ({"format": "enplace-profile/7"}, "text-form"),
        ({"nodes": [], "edges": []}, "dnn-partitioning"),
        ({"schema": "tf-op-profile/1", "nodes": [], "edges": []}, "tf-op-profile"),
    ],
)
def test_the_fields_of_json_decide_its_reader(fields: dict[str, Any], name: str) -> None:
    assert matching(Content(b"{}", "p", fields)) == [name]


def test_no_file_matches_two_readers() -> None:
    formats = (None, 3, "", "odd/1", "enplace/1", "enplace-profile/1", "enplace-plan/1")
    formats += ("tf-op-profile/1", "enplace-cluster/1")
    keys = ("ops", "nodes", "edges")
    for declared, key, *there in product(formats, ("format", "schema"), *[(False, True)] * 3):
        fields: dict[str, Any] = {
            name: [] for name, is_there in zip(keys, there, strict=True) if is_there
        }
        fields |= {} if declared is None else {key: declared}
        assert len(matching(Content(json.dumps(fields).encode(), "p", fields))) <= 1


def test_a_file_that_two_readers_match_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = Reader("greedy", "Everything", (".any",), lambda content: True, lambda content: None)
    monkeypatch.setitem(registered, "greedy", greedy)
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"ops": [], "edges": []}))
    with pytest.raises(FileError, match="could be of the formats greedy and text-form"):
        read_profile(path)


@pytest.mark.parametrize("suffixes", [".mine", ("mine",)])
def test_suffixes_without_a_dot_are_refused(suffixes: Any) -> None:
    with pytest.raises(ValueError, match="its suffixes must be a tuple, each with its dot"):
        reader("mine", title="Mine", suffixes=suffixes, matches=lambda content: False)


def test_a_name_in_use_is_refused() -> None:
    assert "text-form" in readers()
    with pytest.raises(ValueError, match="reader 'text-form': another reader has this name"):
        reader("text-form", title="Mine", suffixes=(".mine",), matches=lambda content: False)
