"""A new reader or exporter takes one file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from enplace import readers, writers
from enplace.readers import read_profile
from enplace.readers.registry import registered as registered_readers
from enplace.writers.registry import registered as registered_exporters

NEW_READER = '''
from enplace.readers.registry import Content, reader
from enplace.values.profile import Profile, make_profile


@reader("lines", title="Lists of ops", suffixes=(".ops",), matches=lambda c: c.data[:4] == b"ops:")
def read_lines(content: Content) -> Profile:
    """Read an op per line."""
    names = content.data.decode().split()[1:]
    n = len(names)
    return make_profile(
        content.stem, op_names=names, op_types=names, scopes=names, time_us=[[1.0, 1.0]] * n,
        persistent_bytes=[0] * n, temporary_bytes=[0] * n, colocation=[""] * n,
        edge_source=[], edge_output=[], edge_op=[], edge_bytes=[],
    )
'''

NEW_EXPORTER = '''
from enplace.values.result import Result
from enplace.writers.registry import exporter


@exporter("names", title="list of ops", suffix=".txt")
def write_names(result: Result) -> str:
    """Write an op per line."""
    return "\\n".join(result.schedule.problem.profile.op_names)
'''


@pytest.fixture
def new_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add a folder with one new file to each of the two packages."""
    for package, text in ((readers, NEW_READER), (writers, NEW_EXPORTER)):
        folder = tmp_path / f"more_{package.__name__}"
        folder.mkdir()
        (folder / "made_by_the_test.py").write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    yield
    registered_readers.pop("lines", None)
    registered_exporters.pop("names", None)


def test_a_new_reader_takes_one_file(new_formats, enplace, folder):
    Path("two.ops").write_text("ops:\na\nb\n")
    done = enplace("import", "two.ops", "-o", "p.enplace", "--json")
    assert done.document["ops"] == 2
    assert read_profile("p.enplace").op_names == ("a", "b")


def test_a_new_exporter_takes_one_file(new_formats, enplace, folder):
    enplace("place", "p.json", "--cluster", "c.json", "--method", "single", "-o", "plan.json")
    done = enplace("export", "p.json", "plan.json", "--format", "names", "-o", "out.txt")
    assert done.status == 0
    assert Path("out.txt").read_text() == "\n".join(read_profile("p.json").op_names)
    assert "names (list of ops)" in " ".join(enplace("export", "--help").out.split())
