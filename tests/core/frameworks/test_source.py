"""Every kind of model source is recognised, or refused with a remedy."""

import gzip
import os
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace.errors import FileError
from enplace.frameworks.source import Source, source_from_json, source_of
from fake_framework import add_second_framework

TRACE = b"\x0a\x80\x01\x0a\x7e\x0a\x2d/job:localhost/replica:0/task:0/device:CPU:0"
"""A message of step statistics that begins with a device's name."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("train.py", "script"),
        ("model.h5", "keras"),
        ("model.HDF5", "keras"),
        ("model.meta", "tf1"),
        ("graph.pb", "tf1"),
        ("graph.pbtxt", "tf1"),
    ],
)
def test_a_file_is_recognised_by_its_name(tmp_path, name, kind):
    path = tmp_path / name
    path.write_bytes(b"anything")
    assert source_of(str(path)) == Source(str(path), kind, framework_name="tensorflow")


def test_a_folder_with_a_saved_model_is_recognised(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01")
    expected = Source(str(tmp_path), "saved-model", framework_name="tensorflow")
    assert source_of(str(tmp_path)) == source_of(str(tmp_path / "saved_model.pb")) == expected
    (tmp_path / "other").mkdir()
    with pytest.raises(FileError, match=r"other: there is no saved_model\.pb in this folder"):
        source_of(str(tmp_path / "other"))


@pytest.mark.parametrize("name", ["graph.pb", "metadata", "trace.bin"])
def test_a_trace_is_recognised_by_its_content(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(TRACE)
    assert source_of(str(path)).kind == "trace"
    path.write_text('step_stats {\n dev_stats {\n device: "/job:localhost"')
    assert source_of(str(path)).kind == "trace"


def test_a_dotted_name_is_a_module_and_is_not_imported(tmp_path, monkeypatch):
    package = tmp_path / "explosive"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemError")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert source_of("explosive.train", arguments=["-n", "3"]) == Source(
        "explosive.train", "module", ("-n", "3"), framework_name="tensorflow"
    )


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("gone.py", None, "no such file, folder or Python module"),
        ("no_module_of_this_name", None, "no such file, folder or Python module"),
        ("n" * 300, None, "no such file, folder or Python module"),
        ("~no-such-user/train.py", None, "no such file, folder or Python module"),
        ("host.xplane.pb", b"", "has no graph; profile the script itself, or save the RunMetadata"),
        ("plane.pb", b"\x0a\x35\x08\x01\x12\x09/host:CPU", "a trace of TensorFlow's profiler"),
        ("line.json", b'{ "traceEvents": [', "a timeline to look at, which has no graph"),
        ("line.json.gz", gzip.compress(b'{"traceEvents": [', mtime=0), "a timeline to look at"),
        ("notes.txt", b"hello", "not a model; choose a training script"),
        ("model.keras", b"", "is empty"),
    ],
)
def test_a_source_that_is_not_a_model_is_refused(tmp_path, monkeypatch, name, content, complaint):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=f"^{re.escape(name)}: .*{complaint}"):
        source_of(name)


@pytest.mark.parametrize("name", ["train.py", "m.keras", "m.pb"])
def test_a_named_pipe_is_no_model_and_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(FileError, match="named pipe"):
        source_of(str(tmp_path / name))


def test_a_loss_needs_an_optimizer_and_vice_versa(tmp_path):
    path = tmp_path / "model.h5"
    path.write_bytes(b"anything")
    with pytest.raises(FileError, match="a loss but no optimizer; give both or neither"):
        source_of(str(path), loss="mse")


def test_the_batch_size_replaces_its_placeholder_in_the_arguments(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("pass")
    source = source_of(str(path), arguments=["--batch={batch}", "--layers", "2"], batch_size=64)
    assert source.words == ["--batch=64", "--layers", "2"]
    assert source.command == "train.py --batch=64 --layers 2"
    assert source.arguments == ("--batch={batch}", "--layers", "2")
    with pytest.raises(FileError, match="needs a batch size"):
        source_of(str(path), arguments=["{batch}"])


TEXTS = st.text(st.characters(categories=("L", "N", "P")), max_size=8)
TRAINED = {"loss": TEXTS.filter(bool), "optimizer": TEXTS.filter(bool)}
OPTIONS = {
    "keras": st.fixed_dictionaries({}, optional=TRAINED),
    "saved-model": st.fixed_dictionaries({}, optional=TRAINED | {"signature": TEXTS.filter(bool)}),
}
SOURCES = st.sampled_from(["script", "module", "keras", "saved-model", "tf1", "trace"]).flatmap(
    lambda kind: st.builds(
        Source,
        path=TEXTS.map(lambda text: os.path.normpath(f"/model-{text}")),
        kind=st.just(kind),
        arguments=st.lists(TEXTS, max_size=3).map(tuple),
        batch_size=st.integers(0, 1 << 24),
        options=OPTIONS.get(kind, st.just({})),
    )
)


@given(SOURCES)
def test_a_source_survives_encoding(source):
    assert source_from_json(source.to_json()) == source


@given(
    SOURCES,
    st.sampled_from(["loss", "gpu", *Source.__dataclass_fields__]),
    st.sampled_from([None, 3.5, -1, [], [1], {}, "?"]),
)
def test_a_spoilt_source_is_refused_or_valid(source, key, value):
    with suppress(FileError):
        read = source_from_json(source.to_json() | {key: value})
        assert source_from_json(read.to_json()) == read


@pytest.fixture(params=["aflame", "torchlight"])
def second(request, tmp_path, monkeypatch):
    """A second framework that opens scripts, too; its folder comes before or after the first."""
    add_second_framework(monkeypatch, tmp_path, folder=request.param)
    return request.param


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("import tensorflow as tf\n", "tensorflow"),
        ("from keras import layers\n", "tensorflow"),
        ("from torchlight import wick\nimport numpy\n", None),
        ("print('tensorflow')\n", "tensorflow"),
        ("import numpy, torchlight\n", None),
        ("import os; import torchlight\n", None),
        ('"""\nimport keras is not needed\n"""\nimport torchlight\n', None),
        ("if True:\n    from torchlight.wick import *\n", None),
        ("import torchlight (\n", "tensorflow"),
    ],
)
def test_a_script_is_opened_by_the_framework_that_it_imports(tmp_path, second, text, owner):
    path = tmp_path / "train.py"
    path.write_text(text)
    source = source_of(str(path))
    assert source.framework_name == (owner or second)
    assert source_from_json(source.to_json()) == source
    chosen = source_of(str(path), framework_name=second)
    assert chosen.framework.name == "Torchlight"


def test_a_framework_that_does_not_open_a_file_is_refused(tmp_path, second):
    (tmp_path / "x.flame").write_text("spark")
    with pytest.raises(FileError, match="TensorFlow does not open this"):
        source_of(str(tmp_path / "x.flame"), framework_name="tensorflow")


def test_a_source_without_a_framework_is_opened_by_the_usual_one(second):
    old = Source("/train.py", "script").to_json()
    del old["framework_name"]
    assert source_from_json(old).framework.name == "TensorFlow"


def test_a_package_that_is_a_program_is_opened_by_what_it_imports(tmp_path, second, monkeypatch):
    package = tmp_path / "pkg" / "sub"
    package.mkdir(parents=True)
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import torchlight")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert source_of("pkg.sub").framework_name == second
    assert source_of("pkg.gone").framework_name == "tensorflow"
