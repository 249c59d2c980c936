"""Weights as a file describes them: names, types and shapes; never their content.

safetensors: eight bytes of length, then JSON (the format's documentation on Hugging Face). GGUF:
``docs/gguf.md`` of ggml. ``config.json``, or the metadata of a GGUF file, says what the model is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files as resource_files
from pathlib import Path
from typing import Any

from enplace.errors import FileError, file_error
from enplace.files.fields import check_format, each_object, is_object, only, shown, take, whole
from enplace.files.json_text import LITTLE_MEMORY_BYTES, parse_json
from enplace.files.reading import naming, open_to_read, read_bytes
from enplace.serving.gguf import MOST_TENSORS, read_gguf
from enplace.serving.tensor import Tensor, Weights, make_tensor
from enplace.text import count, instead, size

MOST_HEADER_BYTES = 100_000_000
"""Longest header of a safetensors file, as its own reader allows."""

MOST_CONFIG_BYTES, MOST_LAYERS = 1 << 20, 1000

FORMAT, VERSION = "enplace-weight-list", 1
INDEX, CONFIG = "model.safetensors.index.json", "config.json"
BUNDLED = Path(str(resource_files("enplace_resources"))) / "weights"

DTYPE_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8.0),
    **dict.fromkeys(("F32", "I32", "U32"), 4.0),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2.0),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 1.0),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 0.75),
    "F4": 0.5,
}
"""Bytes of a number in the types of safetensors."""

PROJECTOR = "mmproj"
"""How the names of files that translate pictures for a model begin."""

_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")


def bundled() -> dict[str, Path]:
    """Return the weight lists that ship with Enplace, by name."""
    return {path.stem: path for path in sorted(BUNDLED.glob("*.json"))}


def read_weights(path: str | os.PathLike[str]) -> Weights:
    """Read the names, types and shapes of a model's weights.

    Parameters
    ----------
    path : str or path
        A folder such as one of Hugging Face's cache, ``model.safetensors.index.json``, a
        ``.safetensors`` or ``.gguf`` file, a weight list in JSON, or the name of a bundled one.

    Raises
    ------
    FileError
        One line with the file, the place in it and the mend.
    """
    place = Path(path)
    if not os.path.lexists(place):
        known = bundled()
        if f"{place}" not in known:
            raise FileError(
                f"{path}: there is no such file, nor are weights of this name bundled; "
                f"{instead(place.name, known)}"
            )
        place = known[f"{place}"]
    if os.path.isdir(place):
        place = _main_file(place)
    if place.suffix == ".gguf":
        return _read_gguf(place)
    if place.suffix == ".safetensors":
        return _with_config(place, _read_safetensors(place))
    if place.name.endswith(".index.json"):
        return _with_config(place, _read_index(place))
    if place.suffix == ".json":
        return _read_list(place)
    raise FileError(
        f"{path}: no folder of a model, no .safetensors, .gguf or .index.json; name one of these"
    )


def _main_file(folder: Path) -> Path:
    """Return the file of a folder that leads to its weights."""
    folder = _snapshot(folder)
    if (folder / INDEX).exists():
        return folder / INDEX
    names = sorted(os.listdir(folder))
    if (usual := "model.safetensors") in names:
        return folder / usual
    found = [
        name
        for name in names
        if name.endswith((".safetensors", ".gguf")) and not name.startswith(PROJECTOR)
    ]
    first = [name for name in found if "-00001-of-" in name and _SHARD.fullmatch(name)]
    for some in (first, found):
        if len(some) == 1:
            return folder / some[0]
    if len(found) > 1:
        raise FileError(f"{folder}: holds {found[0]}, {found[1]}...; name the one to serve")
    pickled = next((name for name in names if name.endswith((".bin", ".pt", ".pth"))), "")
    if pickled:
        raise FileError(
            f"{folder / pickled}: pickled weights are never opened; convert them to safetensors"
        )
    raise FileError(f"{folder}: holds no .safetensors and no .gguf; name the model's folder")


def _snapshot(folder: Path) -> Path:
    """Return the folder of files in one of Hugging Face's cache, whose snapshots have hashes."""
    snapshots = folder / "snapshots"
    if not snapshots.is_dir():
        return folder
    main = folder / "refs" / "main"
    if main.is_file():
        wanted = snapshots / read_bytes(main, 1 << 10).decode(errors="replace").strip()
        if wanted.is_dir() and wanted.parent == snapshots:
            return wanted
    found = [entry for entry in sorted(snapshots.iterdir()) if entry.is_dir()]
    if len(found) != 1:
        raise FileError(f"{snapshots}: holds {count(len(found), 'snapshot')}; name one of them")
    return found[0]


def _with_config(place: Path, tensors: list[Tensor]) -> Weights:
    path = place.parent / CONFIG
    if not path.exists():
        raise FileError(f"{path}: is missing, and says what the model is; put it there")
    with naming(path):
        config = is_object(parse_json(read_bytes(path, MOST_CONFIG_BYTES)), "")
    name = place.parent.name
    if place.parent.parent.name == "snapshots":
        name = place.parent.parent.parent.name.removeprefix("models--").replace("--", "/")
    return _gathered(place, name or place.stem, tensors, config)


def _read_index(place: Path) -> list[Tensor]:
    """Read the headers of all shards that an index names."""
    with naming(place):
        index = is_object(parse_json(read_bytes(place), LITTLE_MEMORY_BYTES), "")
        shard_of = take(index, "weight_map", dict, "")
        for name, shard in shard_of.items():
            if not isinstance(shard, str) or Path(shard).name != shard:
                raise FileError(
                    f"weight_map.{name}: {shown(shard)} is no file beside it; correct it"
                )
    found: list[Tensor] = []
    for shard in dict.fromkeys(shard_of.values()):
        path = place.parent / shard
        if not path.exists():
            raise FileError(f"{path}: is missing, and {place.name} names it; download it")
        found += _read_safetensors(path)
    names = {tensor.name for tensor in found}
    if missing := next((name for name in shard_of if name not in names), ""):
        raise FileError(
            f"{place.parent / shard_of[missing]}: has no tensor '{missing}', which {place.name} "
            f"looks for there; download both again"
        )
    return found


def _read_safetensors(place: Path) -> list[Tensor]:
    with naming(place):
        try:
            with open_to_read(place) as file:
                n_file_bytes = os.fstat(file.fileno()).st_size
                length = int.from_bytes(file.read(8), "little")
                if n_file_bytes < 10 or length > n_file_bytes - 8:
                    raise FileError(
                        f"byte 0: its header of {length:,} bytes is not in its "
                        f"{n_file_bytes:,} bytes; download it again"
                    )
                if length > MOST_HEADER_BYTES:
                    raise FileError(
                        f"byte 0: a header of {size(length)}, unlike any real one; check the path"
                    )
                header = is_object(parse_json(file.read(length)), "header")
        except OSError as error:
            raise file_error(error, f"{place}") from None
        header.pop("__metadata__", None)
        n_data_bytes = n_file_bytes - 8 - length
        return [_stored(name, entry, n_data_bytes) for name, entry in header.items()]


def _stored(name: str, entry: Any, n_data_bytes: int) -> Tensor:
    """Check an entry of a safetensors header against the bytes that the file has."""
    tensor = _described(name, is_object(entry, name), {"dtype", "shape", "data_offsets"})
    offsets = take(entry, "data_offsets", list, name)
    if len(offsets) != 2 or not all(type(each) is int for each in offsets):
        raise FileError(f"{name}.data_offsets: must be two numbers; download the file again")
    begin, end = offsets
    if end > n_data_bytes:
        raise FileError(
            f"{name}: ends at byte {end:,} of the data, but the file has {n_data_bytes:,}; "
            f"download it again"
        )
    if begin < 0 or end - begin != tensor.n_bytes:
        raise FileError(
            f"{name}: {tensor.dtype} of its shape takes {tensor.n_bytes:,} bytes, not "
            f"{end - begin:,}; download the file again"
        )
    return tensor


def _described(name: str, entry: dict[str, Any], known: set[str]) -> Tensor:
    only(entry, known, name)
    dtype = take(entry, "dtype", str, name)
    if dtype not in DTYPE_BYTES:
        raise FileError(f"{name}.dtype: {instead(dtype, DTYPE_BYTES)}")
    shape = take(entry, "shape", list, name)
    return make_tensor(name, dtype, shape, DTYPE_BYTES[dtype])


def _read_gguf(place: Path) -> Weights:
    """Read a GGUF file, and the others that it was split into."""
    places, shard = [place], _SHARD.fullmatch(place.name)
    if shard is not None:
        n = int(shard["count"])
        if n > MOST_LAYERS:
            raise FileError(f"{place}: is one of {n:,} files; join them with gguf-split --merge")
        names = [f"{shard['stem']}-{i:05d}-of-{n:05d}.gguf" for i in range(1, n + 1)]
        places = [place.parent / name for name in names]
    metadata: dict[str, Any] = {}
    tensors: list[Tensor] = []
    for each in places:
        if not each.exists():
            raise FileError(f"{each}: is missing, and belongs to {place.name}; download it")
        with naming(each):
            found, more = read_gguf(each)
        metadata = {**more, **metadata}
        tensors += found
    name = metadata.get("general.name")
    return _gathered(place, name if isinstance(name, str) else place.stem, tensors, metadata, True)


def _read_list(place: Path) -> Weights:
    """Read weights that are listed by hand; ``*`` in a name stands for each layer's number."""
    with naming(place):
        content = is_object(
            parse_json(read_bytes(place, MOST_CONFIG_BYTES), LITTLE_MEMORY_BYTES), ""
        )
        if "format" not in content:
            raise FileError(f"'format' is missing; if it lists weights, add {FORMAT}/{VERSION}")
        check_format(content, FORMAT, VERSION)
        only(content, {"format", "name", "about", "config", "tensors"}, "")
        config = take(content, "config", dict, "")
        n_layers = whole(config, "num_hidden_layers", "config", low=1, high=MOST_LAYERS)
        tensors: list[Tensor] = []
        for entry, where in each_object(content, "tensors", ""):
            name = take(entry, "name", str, where)
            numbers: Iterable[int] = range(n_layers) if "*" in name else (0,)
            names = [name.replace("*", f"{number}") for number in numbers]
            if len(tensors) + len(names) > MOST_TENSORS:
                raise FileError(f"{where}: over {MOST_TENSORS:,} tensors; describe fewer")
            tensors += [_described(each, entry, {"name", "dtype", "shape"}) for each in names]
        name = take(content, "name", str, "", place.stem)
    return _gathered(place, name, tensors, config)


def _gathered(
    place: Path,
    name: str,
    tensors: list[Tensor],
    config: Mapping[str, Any],
    is_gguf: bool = False,
) -> Weights:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise FileError(f"{place}: tensor '{tensor.name}' is there twice; keep one")
        seen.add(tensor.name)
    if not tensors:
        raise FileError(f"{place}: holds no tensors; name the file with the weights")
    return Weights(f"{place}", name, tuple(tensors), dict(config), is_gguf)
