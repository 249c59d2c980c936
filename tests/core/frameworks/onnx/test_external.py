"""Small numbers from the files that lie beside a model, and what is assumed without them."""

import os

import numpy as np
import pytest
from onnx import TensorProto

from enplace.frameworks.onnx.external import find_file
from enplace.frameworks.onnx.graph import read_graph
from onnx_models import floats, model, node, numbers, save


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a model whose shapes lie in a file of a given name."""

    def reader(target, name="w.bin", content=None, last=None):
        path = tmp_path / "models"
        path.mkdir(exist_ok=True)
        if content is not None:
            (path / name).write_bytes(content)
        shape = external("shape", name, TensorProto.INT64, [len(target)], 16)
        nodes = [node("Reshape", "x shape", "r", "reshape"), *(last or [])]
        made = model(nodes, [("x", ["n", 32, 64])], [("r", None)], [shape, floats("w", 16, 8)])
        return read_graph(str(save(made, path / "m.onnx")), 4)

    return reader


def external(name, file, kind, shape, offset):
    tensor = TensorProto(name=name, data_type=kind, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file), ("offset", offset)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def packed(*numbers):
    return b"\xff" * 16 + np.array(numbers, "<i8").tobytes() + b"\xff" * 8


def test_a_shape_is_read_from_the_file_beside_the_model(read):
    graph = read((-1, 16, 128), content=packed(-1, 16, 128))
    assert graph.tensor("r").shape == (4, 16, 128)
    assert not any("beside" in note for note in graph.notes)


@pytest.mark.parametrize(
    ("target", "shape"),
    [((0, 0), (4, 2048)), ((0, 0, 0, 0), (4, 32, 1, 64)), ((0,), (8192,)), ((0,) * 3, (4, 32, 64))],
)
def test_without_the_file_a_reshape_keeps_its_number_of_values_and_its_first_axes(
    read, target, shape
):
    graph = read(target)
    assert graph.tensor("r").shape == shape
    assert graph.notes[-1].startswith('1 op takes its shape from "w.bin", which is not beside')


def test_its_last_axis_is_as_long_as_the_op_behind_it_needs(read):
    graph = read((0, 0, 0), last=[node("MatMul", "r w", "y", "dense")])
    assert graph.tensor("r").shape == (4, 128, 16)
    assert graph.tensor("y").shape == (4, 128, 8)


def test_a_file_that_is_too_short_counts_as_missing(read):
    graph = read((-1, 16, 128), content=packed(-1)[:20])
    assert graph.tensor("r").n_values == 4 * 32 * 64
    assert "is a guess" in graph.notes[-1]


def test_a_shape_that_is_computed_from_a_missing_file_is_a_guess_too(tmp_path):
    """As transformers do: the batch and the length from a shape, the heads from the file."""
    heads = external("heads", "w.bin", TensorProto.INT64, [2], 0)
    nodes = [
        node("Shape", "x", "shape", "shape"),
        node("Slice", "shape zero two", "front", "front"),
        node("Concat", "front heads", "split", "split", axis=0),
        node("Reshape", "x split", "r", "reshape"),
    ]
    ends = [numbers("zero", 0), numbers("two", 2)]
    made = model(nodes, [("x", [2, 8, 64])], [("r", None)], [heads, *ends])
    graph = read_graph(str(save(made, tmp_path / "m.onnx")))
    assert graph.tensor("r").shape == (2, 8, 1, 64)
    assert graph.notes[-1].startswith('1 op takes its shape from "w.bin"')


@pytest.mark.parametrize("name", ["../w.bin", "link.bin", "pipe.bin", "."])
def test_only_files_in_the_models_folder_are_read(read, tmp_path, name):
    (tmp_path / "w.bin").write_bytes(packed(-1, 16, 128))
    (tmp_path / "models").mkdir()
    (tmp_path / "models/link.bin").symlink_to(tmp_path / "w.bin")
    os.mkfifo(tmp_path / "models/pipe.bin")
    for path in (name, str(tmp_path / "w.bin")):
        assert read((-1, 16, 128), path).tensor("r").shape == (4, 32, 64)


def test_a_link_of_hugging_faces_cache_is_followed_to_its_blobs_only(tmp_path):
    cache = tmp_path / "models--a--b"
    folder = cache / "snapshots/rev/onnx"
    folder.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for at in (cache / "blobs/hash", tmp_path / "elsewhere"):
        at.write_bytes(packed(-1))
        (folder / at.name).symlink_to(at)
    assert find_file(folder, "hash") == cache / "blobs/hash"
    assert find_file(folder, "elsewhere") is None


@pytest.mark.parametrize("axis", [1, -1])
def test_sizes_in_a_missing_file_are_assumed_and_said(tmp_path, axis):
    absent = external("sizes", "w.bin", TensorProto.INT64, [2], 0)
    nodes = [
        node("Split", "x sizes", "p q", "split", axis=axis),
        node("Tile", "p sizes", "t", "tile"),
    ]
    made = model(nodes, [("x", [4, 64])], [("t", None), ("q", None)], [absent])
    (tmp_path / "w.bin").symlink_to(tmp_path.parent / "elsewhere.bin")
    graph = read_graph(str(save(made, tmp_path / "m.onnx")))
    assert [graph.tensor(name).shape for name in "pqt"] == [(4, 32)] * 3
    assert "a split counts as one into equal parts; what Tile makes counts as" in graph.notes[-1]
    assert '"w.bin" is a link to another folder' in graph.notes[-1]
