import json
import struct
from importlib.resources import files

import jsonschema
import pytest

from enplace.errors import FileError
from enplace.serving.weights import bundled, read_weights
from weight_files import (
    CONFIG,
    VOCABULARY,
    gguf_bytes,
    gguf_metadata,
    gguf_tensors,
    llama_shapes,
    write_folder,
    write_gguf,
    write_header,
    write_safetensors,
)


def test_headers_alone_tell_names_types_and_bytes(tmp_path):
    folder = write_folder(tmp_path / "small")
    for path in (folder, folder / "model.safetensors.index.json"):
        found = read_weights(path)
        assert found.name == "small"
        assert {each.name: [*each.shape] for each in found.tensors} == llama_shapes()
        assert next(t.n_bytes for t in found.tensors if t.name == "lm_head.weight") == 128_000


def test_a_folder_of_hugging_faces_cache_leads_to_its_snapshot(tmp_path):
    cache = tmp_path / "models--some--small"
    write_folder(cache / "snapshots" / "abc")
    write_folder(cache / "snapshots" / "def", shapes=llama_shapes(head=False))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    found = read_weights(cache)
    assert (found.name, len(found.tensors)) == ("some/small", len(llama_shapes()))


def test_a_gguf_header_tells_the_blocks_of_quantised_types(tmp_path):
    found = read_weights(write_gguf(tmp_path / "small.gguf"))
    tensors = {each.name: each for each in found.tensors}
    assert tensors["token_embd.weight"].shape == (VOCABULARY, 256)
    assert tensors["token_embd.weight"].n_bytes == VOCABULARY * 144
    assert tensors["blk.3.ffn_down.weight"].n_bytes == 1024 * 210
    assert found.config["tokenizer.ggml.tokens"] == VOCABULARY


def test_a_split_gguf_is_read_as_one(tmp_path):
    first, second = gguf_tensors()[:3], gguf_tensors()[3:]
    write_gguf(tmp_path / "m-00001-of-00002.gguf", tensors=first)
    path = tmp_path / "m-00002-of-00002.gguf"
    write_gguf(path, tensors=second)
    assert len(read_weights(tmp_path).tensors) == len(gguf_tensors())
    path.unlink()
    with pytest.raises(FileError, match=r"m-00002-of-00002.gguf: is missing, .* download it"):
        read_weights(tmp_path)


def test_bundled_weights_have_the_size_that_their_models_are_known_for():
    sizes = {name: sum(t.n_bytes for t in read_weights(name).tensors) / 1e9 for name in bundled()}
    assert sizes == {
        "llama-3-70b": pytest.approx(141.1, abs=0.1),
        "llama-3-70b-fp8": pytest.approx(72.7, abs=0.1),
        "llama-3.1-8b": pytest.approx(16.06, abs=0.01),
    }


def _index(folder, shard):
    index = {"weight_map": dict.fromkeys(llama_shapes(), shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _entry(**given):
    entry = {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]} | given
    return json.dumps({"model.layers.0.a": entry}).encode()


FAULTS_OF_SAFETENSORS = {
    "shorter than its length": (b"", "byte 0: its header of 99 bytes is not in"),
    "no JSON": (b"{oops", "line 1, column 2: not valid JSON"),
    "twice": (b'{"a": {}, "a": {}}', 'holds "a" twice; keep one'),
    "unknown type": (_entry(dtype="F9"), "model.layers.0.a.dtype: "),
    "shape of another size": (_entry(shape=[5]), "BF16 of its shape takes 10 bytes, not 8"),
    "shape that overflows": (_entry(shape=[1 << 40, 1 << 40]), "its shape means over 2\\^62 bytes"),
    "negative shape": (_entry(shape=[-1]), "whole numbers from 0 to 2\\^62"),
    "data beyond the end": (_entry(data_offsets=[0, 80]), "ends at byte 80 of the data, but"),
    "offsets that are none": (_entry(data_offsets=[0]), "data_offsets: must be two numbers"),
    "more than a shape": (_entry(pickle="x"), "'pickle' means nothing here"),
}


@pytest.mark.parametrize("fault", FAULTS_OF_SAFETENSORS)
def test_a_damaged_safetensors_header_is_one_line_with_its_place(tmp_path, fault):
    header, line = FAULTS_OF_SAFETENSORS[fault]
    path = tmp_path / "model.safetensors"
    if header:
        write_header(path, header, 8)
    else:
        path.write_bytes(struct.pack("<Q", 99) + b"{}")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(FileError, match=line) as caught:
        read_weights(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_download_that_was_cut_off_is_refused(tmp_path):
    write_safetensors(tmp_path / "m.safetensors", llama_shapes(), missing_bytes=1)
    with pytest.raises(FileError, match=r"lm_head.weight: ends at byte .* download it again"):
        read_weights(tmp_path)
    (tmp_path / "m.safetensors").unlink()
    write_gguf(tmp_path / "m.gguf", missing_bytes=1)
    with pytest.raises(FileError, match=r"m.gguf: its tensors end at byte .* download it again"):
        read_weights(tmp_path)


def test_whatever_is_missing_beside_an_index_is_named(tmp_path):
    folder = write_folder(tmp_path / "small")
    (folder / "b.safetensors").unlink()
    with pytest.raises(FileError, match=r"b.safetensors: is missing, .* download it"):
        read_weights(folder)
    _index(folder, "../a.safetensors")
    with pytest.raises(FileError, match="is no file beside it"):
        read_weights(folder)
    _index(folder, "a.safetensors")
    with pytest.raises(FileError, match=r"a.safetensors: has no tensor '.*', which"):
        read_weights(folder)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    folder = write_folder(tmp_path / "small")
    write_safetensors(folder / "b.safetensors", llama_shapes())
    with pytest.raises(FileError, match=r"tensor '.*' is there twice; keep one"):
        read_weights(folder)


def test_of_several_files_the_usual_one_is_taken_or_a_choice_is_asked(tmp_path):
    for name in ("consolidated.safetensors", "mmproj-f16.gguf", "other.safetensors"):
        write_safetensors(tmp_path / name, llama_shapes())
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(FileError, match=r"holds consolidated.safetensors, other.safetensors\.\.\."):
        read_weights(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", llama_shapes(head=False))
    assert len(read_weights(tmp_path).tensors) == len(llama_shapes(head=False))


def test_pickled_weights_are_never_opened(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(FileError, match="pickled weights are never opened; convert them"):
        read_weights(tmp_path)


def test_weights_without_a_config_are_refused(tmp_path):
    write_safetensors(tmp_path / "m.safetensors", llama_shapes())
    with pytest.raises(FileError, match=r"config.json: is missing, and says what the model is"):
        read_weights(tmp_path / "m.safetensors")


FAULTS_OF_GGUF = {
    "another version": ({"version": 9}, "byte 4: GGUF of version 9"),
    "too many tensors": ({"n_tensors": 1 << 40}, "1,099,511,627,776 tensors, unlike any real"),
    "more tensors than there are": ({"n_tensors": 30}, "a tensor is called"),
    "unknown type": ({"tensors": [("a", [256], 99)]}, "tensor 'a' is of type 99"),
    "row of part of a block": ({"tensors": [("a", [100], 12)]}, "Q4_K stores 256 numbers together"),
    "sizes that overflow": (
        {"tensors": [("a", [1 << 40, 1 << 40], 0)]},
        "its shape means over 2\\^62 bytes",
    ),
    "a tensor of nothing": ({"tensors": [("a", [0, 256], 0)]}, "'a' has a dimension of 0"),
    "a tensor twice": ({"tensors": [("a", [256], 0)] * 2}, "tensor 'a' is there twice"),
    "no tensors": ({"tensors": []}, "holds no tensors"),
}


@pytest.mark.parametrize("fault", FAULTS_OF_GGUF)
def test_a_damaged_gguf_header_is_one_line_with_its_place(tmp_path, fault):
    given, line = FAULTS_OF_GGUF[fault]
    path = write_gguf(tmp_path / "m.gguf", **given)
    with pytest.raises(FileError, match=line) as caught:
        read_weights(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_gguf_header_cut_off_anywhere_is_refused(tmp_path):
    path, (header, _) = tmp_path / "m.gguf", gguf_bytes()
    for n in (0, 3, 7, 15, 30, 100, len(header) // 2, len(header) - 1):
        path.write_bytes(header[:n])
        with pytest.raises(FileError, match=r"download it again|no GGUF file"):
            read_weights(path)


def test_an_array_of_a_length_that_no_file_has_is_refused_at_once(tmp_path):
    header, _ = gguf_bytes(metadata={**gguf_metadata(), "long": [1, 2]})
    at = header.index(b"long") + 4 + 8  # behind the types of the array and of what is in it
    for n in (1 << 61, 1 << 30):
        (tmp_path / "m.gguf").write_bytes(header[:at] + struct.pack("<Q", n) + header[at + 8 :])
        with pytest.raises(FileError, match="its header goes on beyond"):
            read_weights(tmp_path)


def test_a_description_by_hand_names_layers_by_a_star(tmp_path):
    path = tmp_path / "mine.json"
    content = {
        "format": "enplace-weight-list/1",
        "config": CONFIG,
        "tensors": [{"name": "model.layers.*.w", "dtype": "F16", "shape": [2, 3]}],
    }
    path.write_text(json.dumps(content))
    found = read_weights(path)
    assert [each.name for each in found.tensors] == [f"model.layers.{n}.w" for n in range(4)]
    path.write_text(json.dumps({**content, "tensors": [{"name": "a", "dtype": "F16"}]}))
    with pytest.raises(FileError, match=r"mine.json: a: 'shape' is missing"):
        read_weights(path)


def test_bundled_weight_lists_obey_their_schema():
    schema = json.loads((files("enplace_resources") / "weight-list.schema.json").read_bytes())
    for path in bundled().values():
        jsonschema.validate(json.loads(path.read_bytes()), schema)
