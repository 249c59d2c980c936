import json

import platformdirs
import pytest

from enplace.errors import FileError
from enplace.frameworks.source import Source
from enplace.frameworks.trust import folder_of, is_trusted, needs_trust, trust


@pytest.fixture(autouse=True)
def settings(tmp_path, monkeypatch):
    """Use an empty settings folder."""
    folder = tmp_path / "settings"
    monkeypatch.setattr(platformdirs, "user_config_dir", lambda name: str(folder))
    return folder


@pytest.mark.parametrize("kind", ["script", "module", "keras", "saved-model", "tf1"])
def test_every_kind_of_model_may_contain_code(kind):
    assert needs_trust(Source("x", kind))


def test_a_trace_contains_no_code():
    assert not needs_trust(Source("x", "trace"))


def test_trusting_a_folder_covers_everything_in_it(tmp_path):
    script = tmp_path / "models" / "deep" / "train.py"
    assert not is_trusted(script)
    trust(tmp_path / "models")
    assert is_trusted(script)
    assert is_trusted(tmp_path / "models" / "other.py")
    assert not is_trusted(tmp_path / "train.py")
    assert not is_trusted(tmp_path / "models-of-others" / "train.py")


def test_trusting_another_folder_keeps_the_first(tmp_path):
    trust(tmp_path / "a")
    trust(tmp_path / "b")
    assert is_trusted(tmp_path / "a" / "x.py")
    assert is_trusted(tmp_path / "b" / "x.py")


def test_a_link_is_as_trusted_as_its_target(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "x.py").touch()
    (tmp_path / "mine" / "x.py").symlink_to(tmp_path / "theirs" / "x.py")
    trust(tmp_path / "mine")
    assert not is_trusted(tmp_path / "mine" / "x.py")


def test_a_module_is_trusted_with_the_folder_it_is_run_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert folder_of(Source("package.train", "module")) == tmp_path
    trust(tmp_path)
    assert is_trusted("package.train")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"folders": "/"}',
        b'{"format": "enplace-trust/9", "folders": ["/"]}',
    ],
)
def test_a_damaged_list_trusts_nothing_and_is_replaced(settings, tmp_path, content):
    settings.mkdir()
    (settings / "trusted.json").write_bytes(content)
    assert not is_trusted(tmp_path / "x.py")
    trust(tmp_path)
    assert is_trusted(tmp_path / "x.py")
    assert json.loads((settings / "trusted.json").read_text())["folders"] == [str(tmp_path)]


def test_settings_that_cannot_be_written_are_reported(settings, tmp_path):
    (settings / "trusted.json").mkdir(parents=True)
    with pytest.raises(FileError, match="cannot write"):
        trust(tmp_path)
