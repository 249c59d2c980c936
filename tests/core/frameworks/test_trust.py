import json
import stat
from dataclasses import replace

import platformdirs
import pytest

from enplace.errors import FileError
from enplace.frameworks.source import Source, source_from_json, source_of
from enplace.frameworks.trust import TrustError, is_trusted, may_run, place_of, trust


@pytest.fixture(autouse=True)
def settings(tmp_path, monkeypatch):
    """Use an empty settings folder."""
    folder = tmp_path / "settings"
    monkeypatch.setattr(platformdirs, "user_config_dir", lambda name: str(folder))
    return folder


def script(path, *arguments):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("pass")
    return Source(str(path), "script", arguments)


@pytest.mark.parametrize("kind", ["script", "module", "keras", "saved-model", "tf1"])
def test_every_kind_of_model_may_contain_code(kind):
    name = "timeit" if kind == "module" else "x"
    assert not may_run(Source(name, kind), brought=False)


def test_a_trace_contains_no_code():
    assert may_run(Source("x", "trace"), brought=True)


def test_trusting_a_script_covers_everything_in_its_folder(tmp_path):
    trust(script(tmp_path / "models" / "train.py"))
    assert may_run(script(tmp_path / "models" / "deep" / "train.py"), brought=False)
    assert may_run(script(tmp_path / "models" / "other.py"), brought=False)
    assert not may_run(script(tmp_path / "train.py"), brought=False)
    assert not may_run(script(tmp_path / "models-of-others" / "train.py"), brought=False)


def test_trusting_a_saved_model_covers_nothing_beside_it(tmp_path):
    (tmp_path / "mine").mkdir()
    trust(Source(str(tmp_path / "mine"), "saved-model"))
    assert may_run(Source(str(tmp_path / "mine"), "saved-model"), brought=True)
    assert not may_run(Source(str(tmp_path / "theirs"), "saved-model"), brought=False)
    assert not may_run(script(tmp_path / "train.py"), brought=False)


def test_trusting_a_saved_model_vouches_for_no_script_in_it(tmp_path):
    (tmp_path / "mine").mkdir()
    trust(Source(str(tmp_path / "mine"), "saved-model"))
    assert not may_run(script(tmp_path / "mine" / "assets" / "train.py"), brought=False)


def test_trusting_another_folder_keeps_the_first(tmp_path):
    trust(script(tmp_path / "a" / "x.py"))
    trust(script(tmp_path / "b" / "x.py"))
    assert is_trusted(script(tmp_path / "a" / "y.py"))
    assert is_trusted(script(tmp_path / "b" / "y.py"))


def test_a_file_cannot_bring_other_arguments_for_a_trusted_script(tmp_path):
    allowed = script(tmp_path / "train.py", "--batch", "16")
    trust(allowed)
    assert may_run(allowed, brought=True)
    other = replace(allowed, arguments=("--batch", "16; rm"))
    assert may_run(other, brought=False)
    assert not may_run(other, brought=True)
    trust(other)
    assert may_run(other, brought=True)


def test_a_file_cannot_start_a_script_that_has_never_run(tmp_path):
    trust(script(tmp_path / "train.py"))
    other = script(tmp_path / "delete_all.py")
    assert may_run(other, brought=False)
    assert not may_run(other, brought=True)
    trust(other)
    assert may_run(other, brought=True)


def test_a_command_too_long_to_read_may_not_be_brought_by_a_file(tmp_path):
    long = script(tmp_path / "train.py", "a" * 5000)
    trust(long)
    assert may_run(long, brought=False)
    with pytest.raises(TrustError, match="too long to read"):
        may_run(long, brought=True)


def test_a_link_is_as_trusted_as_its_target(tmp_path):
    (tmp_path / "mine").mkdir()
    theirs = script(tmp_path / "theirs" / "x.py")
    link = tmp_path / "mine" / "x.py"
    link.symlink_to(theirs.path)
    trust(script(tmp_path / "mine" / "y.py"))
    assert not may_run(Source(str(link), "script"), brought=False)


def test_a_link_to_a_trusted_script_is_that_script(tmp_path):
    mine = script(tmp_path / "mine" / "train.py")
    link = tmp_path / "evil" / "train.py"
    link.parent.mkdir()
    link.symlink_to(mine.path)
    assert source_of(str(link)).path == mine.path
    assert source_from_json(mine.to_json() | {"path": str(link)}) == mine


def test_a_module_is_trusted_with_the_folder_that_holds_it(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    own = Source("package.train", "module")
    assert place_of(own) == tmp_path
    trust(own)
    assert may_run(own, brought=True)


def test_a_module_that_does_not_exist_asks_for_no_trust_in_the_current_folder():
    missing = Source("no_such_module", "module")
    with pytest.raises(TrustError, match="there is no such Python module"):
        may_run(missing, brought=True)


def test_a_package_in_two_folders_is_trusted_where_the_module_lies(tmp_path, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / name / "shared").mkdir(parents=True)
        monkeypatch.syspath_prepend(tmp_path / name)
    (tmp_path / "first" / "shared" / "train.py").touch()
    assert place_of(Source("shared.train", "module")) == tmp_path / "first"


def test_a_trusted_current_folder_does_not_allow_every_module(tmp_path, monkeypatch):
    """``timeit`` runs its arguments as code, and is found in any folder."""
    monkeypatch.chdir(tmp_path)
    trust(script(tmp_path / "train.py"))
    command = Source("timeit", "module", ("-n1", "-r1", "import os"))
    assert place_of(command) != tmp_path
    assert not may_run(command, brought=True)
    assert not may_run(command, brought=False)


def test_only_a_folder_of_the_import_path_counts_for_a_module(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "lib")
    assert place_of(Source("mine", "module")) == tmp_path / "lib"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"places": "/"}',
        b'{"folders": ["/"]}',
        b'{"format": "enplace-trust/9", "places": ["/"]}',
    ],
)
def test_a_damaged_list_trusts_nothing_and_is_replaced(settings, tmp_path, content):
    settings.mkdir()
    (settings / "trusted.json").write_bytes(content)
    mine = script(tmp_path / "x.py")
    assert not is_trusted(mine)
    trust(mine)
    assert is_trusted(mine)
    assert json.loads((settings / "trusted.json").read_text())["places"] == [str(tmp_path)]


def test_what_is_trusted_already_is_not_written_again(settings, tmp_path):
    model = script(tmp_path / "x.py")
    trust(model)
    (settings / "trusted.json").chmod(0o400)
    settings.chmod(0o500)
    trust(model)
    assert stat.S_IMODE(settings.stat().st_mode) == 0o500


def test_only_the_user_can_read_what_is_trusted(settings, tmp_path):
    trust(script(tmp_path / "x.py"))
    assert stat.S_IMODE(settings.stat().st_mode) == 0o700
    assert stat.S_IMODE((settings / "trusted.json").stat().st_mode) == 0o600


def test_settings_that_cannot_be_written_are_reported(settings, tmp_path):
    settings.write_text("a file, not a folder")
    with pytest.raises(FileError, match="settings"):
        trust(script(tmp_path / "x.py"))
