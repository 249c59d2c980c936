"""Saved Keras models are checked before TensorFlow is started."""

import zipfile

import pytest

from enplace.errors import FileError
from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow import keras_file

CONFIG = b'{"class_name": "Sequential"}'


def keras_model(folder, **members):
    """Write a Keras model, as far as its members and their sizes go."""
    path = folder / "m.keras"
    content = {"config.json": CONFIG, "metadata.json": b"{}", "model.weights.h5": b"\x89HDF"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (content | members).items():
            archive.writestr(name, text)
    return path


def test_a_keras_model_is_opened(tmp_path):
    assert source_of(str(keras_model(tmp_path))).kind == "keras"


@pytest.mark.parametrize("name", ["config.json", "model.weights.h5", "more"])
def test_a_keras_model_that_unpacks_to_a_thousand_times_its_size_is_refused(
    tmp_path, monkeypatch, name
):
    monkeypatch.setattr(keras_file, "SMALL_BYTES", 1 << 20)
    path = keras_model(tmp_path, **{name: CONFIG + b" " * (4 << 20)})
    with pytest.raises(FileError, match=r"m\.keras: unpacks from .* do not trust it"):
        source_of(str(path))


def test_a_keras_model_of_many_empty_files_is_refused_before_they_are_listed(tmp_path, monkeypatch):
    path = keras_model(tmp_path, **{f"{n}": "" for n in range(10_001)})
    monkeypatch.setattr(zipfile.ZipFile, "infolist", lambda _: pytest.fail("listed"))
    with pytest.raises(FileError, match="holds more than 10,000 files"):
        source_of(str(path))


def test_the_config_of_a_keras_model_takes_little_memory(tmp_path, monkeypatch):
    path = keras_model(tmp_path, **{"config.json": b'{"a": [' + b"{}," * 7_000_000 + b"{}]}"})
    with pytest.raises(FileError, match=r"config\.json: would take over .* of memory"):
        source_of(str(path))
    monkeypatch.setattr(keras_file, "MAX_CONFIG_BYTES", 10)
    with pytest.raises(FileError, match=r"config\.json: larger than any real one"):
        source_of(str(keras_model(tmp_path)))


def test_a_damaged_keras_model_is_refused_before_keras_reads_it(tmp_path):
    path = keras_model(tmp_path)
    whole = path.read_bytes()
    at = whole.index(b"config.json") + len(b"config.json") + 2
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    with pytest.raises(FileError, match=r"(save|copy) it again"):
        source_of(str(path))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileError, match="damaged or not a Keras model"):
        source_of(str(path))
