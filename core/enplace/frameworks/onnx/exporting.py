"""Models written with a plan: one file that says the device of each node, or one for each stage.

The model's own file stays as it is. A file of weights that lies beside it is copied, or of a stage
the part that the stage needs.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from onnx import GraphProto, ModelProto, TensorProto, TypeProto, ValueInfoProto
from onnx.shape_inference import infer_shapes

from enplace.errors import FIXES, FileError, PlanError
from enplace.files.fields import shown
from enplace.files.writing import temporary_name, write_atomically
from enplace.frameworks.onnx.cutting import Part, cut
from enplace.frameworks.onnx.devices import add_plan
from enplace.frameworks.onnx.external import all_tensors, find_file, is_external, location, span
from enplace.frameworks.onnx.functions import reads
from enplace.frameworks.onnx.graph import Graph, open_model, read_bare, read_graph
from enplace.frameworks.onnx.profile import name_nodes
from enplace.frameworks.onnx.tensors import tensor_of
from enplace.text import listed

FORMAT = "enplace-onnx-stages/1"
MANIFEST = "stages.json"

_MOST_FILE_BYTES = (1 << 31) - 1
_ALIGNED = 64
"""Where weights begin in a file, so that a runtime can map them into memory."""

_CHUNK_BYTES = 1 << 24


class Export:
    """A model and a plan for it.

    Parameters
    ----------
    path : str
        The model's file.
    branch : str
        The branches that were opened when it was imported.
    sizes : mapping
        How its open sizes were chosen, for tensors whose shape nothing else tells.
    ops : sequence of str
        The ops that the plan is for.
    devices : sequence of int
        The device of each op.
    names : sequence of str
        The names of the devices.

    Raises
    ------
    FileError, PlanError
        If the file cannot be read, or holds another graph by now.
    """

    def __init__(
        self,
        path: str,
        branch: str,
        sizes: Mapping[str, int],
        ops: Sequence[str],
        devices: Sequence[int],
        names: Sequence[str],
    ) -> None:
        self.path, self._branch, self._names = Path(path), branch, names
        self.graph: Graph = read_graph(path, sizes=sizes, branch=branch)
        own = [*self.graph.inputs, *name_nodes(self.graph, list(self.graph.nodes))]
        if own != list(ops):
            raise PlanError(
                f"{path}: the plan was made for another graph; import the model again, and make a "
                f"new plan"
            )
        self._devices = list(devices)[len(self.graph.inputs) :]
        self.model, opened = open_model(path, branch)
        self.notes = [each.what for each in opened]

    # One file

    def write_model(self, output: Path) -> list[str]:
        """Write the model with the device of each node; return lines for people."""
        try:
            stages: list[int] | None = self._stages(cut(self.model.graph, self._devices))
        except PlanError:  # it has no stages
            stages = None
        add_plan(self.model, self._names, self._devices, stages)
        notes = [*self.notes, *self._copy_weights(output.parent)]
        write_atomically(output, _serialized(self.model))
        return notes

    def _stages(self, parts: Sequence[Part]) -> list[int]:
        stages = [0] * len(self._devices)
        for number in reversed(range(len(parts))):
            for node in parts[number].nodes:
                stages[node] = number
        return stages

    def _copy_weights(self, folder: Path) -> list[str]:
        """Copy the files that hold the weights; return lines for people."""
        source = self.path.parent
        if os.path.realpath(folder) == os.path.realpath(source):
            return []
        names = {location(each) for each in all_tensors(self.model.graph) if is_external(each)}
        copied, missing = list[str](), list[str]()
        for name in sorted(names):
            data = find_file(source, name)
            if data is None:
                missing.append(name)
            elif not _is_copied(data, folder / name):
                copied.append(name)
        for name in copied:
            target = folder / name
            part = target.with_name(temporary_name(target.name))
            with _saying_why(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(os.path.realpath(source / name), part)
                os.replace(part, target)
        return [
            *([f"Its weights are copied beside it: {listed(copied)}."] if copied else []),
            *_about_missing(missing, source, folder),
        ]

    # A file for each stage

    def write_stages(self, place: Path, folder: Path) -> list[str]:
        """Write each stage as a model of its own, and what joins them; return lines for people.

        Parameters
        ----------
        place, folder : path
            An empty folder to fill, and what it will be called.
        """
        parts = cut(self.model.graph, self._devices)
        types = self._types(parts)
        width, missing = len(str(len(parts))), dict[str, None]()
        stages = []
        for number, part in enumerate(parts, 1):
            name = f"stage-{number:0{width}}.onnx"
            stage = self._stage(part, types)
            missing |= self._move_weights(stage, place, f"{name}.data")
            _write(place / name, _serialized(stage))
            stages.append(self._describe(name, part, stage))
        manifest = {
            "format": FORMAT,
            "model": self.path.name,
            "inputs": list(self.graph.inputs),
            "outputs": [info.name for info in self.model.graph.output],
            "stages": stages,
        }
        _write(place / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
        used = [self._names[part.device] for part in parts]
        again = len(used) - len(set(used))
        back = (
            f"The plan comes back to devices, so there are {len(parts)} stages on "
            f"{len(set(used))} devices."
        )
        return [
            *self.notes,
            *([back] if again else []),
            *_about_missing(missing, self.path.parent, folder),
        ]

    def _describe(self, name: str, part: Part, stage: ModelProto) -> dict[str, Any]:
        return {
            "file": name,
            "device": self._names[part.device],
            "inputs": list(part.inputs),
            "outputs": list(part.outputs),
            "ops": len(part.nodes),
            "weights_bytes": sum(tensor_of(each).n_bytes for each in stage.graph.initializer),
        }

    def _stage(self, part: Part, types: Mapping[str, TypeProto]) -> ModelProto:
        """Return a model of some nodes, with the weights that they need."""
        whole, stage = self.model.graph, ModelProto()
        for field, value in self.model.ListFields():
            if field.name not in ("graph", "functions", "training_info", "configuration"):
                if hasattr(value, "extend"):
                    getattr(stage, field.name).extend(value)
                else:
                    setattr(stage, field.name, value)
        graph: GraphProto = stage.graph
        graph.name = f"{whole.name or 'graph'}_stage"
        graph.node.extend(whole.node[number] for number in part.nodes)
        for node in graph.node:
            del node.device_configurations[:]
        for field_name, names in (("input", part.inputs), ("output", part.outputs)):
            for name in names:
                info = getattr(graph, field_name).add(name=name)
                info.type.CopyFrom(types[name])
        read = {name for number in part.nodes for name in self._reads(number)} | {*part.outputs}
        graph.initializer.extend(each for each in whole.initializer if each.name in read)
        sparse = (each for each in whole.sparse_initializer if each.values.name in read)
        graph.sparse_initializer.extend(sparse)
        made = {name for node in graph.node for name in node.output} - {*part.outputs}
        graph.value_info.extend(each for each in whole.value_info if each.name in made)
        return stage

    def _reads(self, number: int) -> Iterable[str]:
        return reads(self.model.graph.node[number])

    def _types(self, parts: Sequence[Part]) -> dict[str, TypeProto]:
        """Return the types of all tensors between stages, with the sizes that are open left open.

        Raises
        ------
        PlanError
            If a tensor's type is not known.
        """
        model, _, _ = read_bare(str(self.path), self._branch)
        with suppress(Exception):  # of many kinds; then the types are those of the sized graph
            model = infer_shapes(model, data_prop=True)
        infos: Iterable[ValueInfoProto] = (
            *model.graph.value_info,
            *model.graph.output,
            *model.graph.input,
        )
        known = {info.name: info.type for info in infos if info.type.WhichOneof("value")}
        names = dict.fromkeys(name for part in parts for name in (*part.inputs, *part.outputs))
        return {name: self._type(name, known.get(name)) for name in names}

    def _type(self, name: str, known: TypeProto | None) -> TypeProto:
        tensor = self.graph.tensor(name)
        is_tensor = known is None or known.HasField("tensor_type")
        made = TypeProto()
        if known is not None:
            made.CopyFrom(known)
        if not is_tensor:
            return made
        if not made.tensor_type.elem_type and tensor.dtype:
            made.tensor_type.elem_type = TensorProto.DataType.Value(tensor.dtype)
        if not made.tensor_type.elem_type:
            raise PlanError(
                f"{self.path}: the type of tensor {shown(name)}, which would go from stage to "
                f"stage, is not known; keep the ops on both its sides on one device"
            )
        if not made.tensor_type.HasField("shape") and tensor.shape is not None:
            for axis in range(len(tensor.shape)):
                made.tensor_type.shape.dim.add(dim_param=f"{name}_{axis}")
        return made

    def _move_weights(self, stage: ModelProto, folder: Path, name: str) -> dict[str, None]:
        """Copy weights out of the model's data files into one of the stage's own.

        Returns the files that are missing, whose weights stay where the model says.
        """
        missing = dict[str, None]()
        tensors = [each for each in all_tensors(stage.graph) if is_external(each)]
        files = {place: find_file(self.path.parent, place) for place in map(location, tensors)}
        found = [each for each in tensors if files[location(each)] is not None]
        missing |= dict.fromkeys(location(each) for each in tensors if not files[location(each)])
        if not found:
            return missing
        with _saying_why(folder / name), open(folder / name, "xb") as target:
            for tensor in found:
                target.write(b"\0" * (-target.tell() % _ALIGNED))
                start = target.tell()
                n_bytes = _copy_span(tensor, files[location(tensor)], target)
                del tensor.external_data[:]
                for key, value in (("location", name), ("offset", start), ("length", n_bytes)):
                    tensor.external_data.add(key=key, value=str(value))
        return missing


def _copy_span(tensor: TensorProto, path: Path | None, target: Any) -> int:
    assert path is not None
    try:
        offset, n_bytes = span(tensor)
        left = n_bytes
        with open(path, "rb") as source:
            source.seek(offset)
            while left and (chunk := source.read(min(left, _CHUNK_BYTES))):
                target.write(chunk)
                left -= len(chunk)
    except (OverflowError, ValueError):
        left, n_bytes = 1, 0
    if left:
        raise FileError(f"{path}: does not hold all of weight {shown(tensor.name)}; copy it again")
    return n_bytes


def _about_missing(names: Iterable[str], source: Path, folder: Path) -> list[str]:
    files = [shown(name) for name in names]
    if not files:
        return []
    is_one = len(files) == 1
    return [
        f"The weights in {listed(files)} are not in {source}, beside the model: put "
        f"{'that file' if is_one else 'those files'} into {folder} before anything runs."
    ]


def _is_copied(source: Path, target: Path) -> bool:
    """Return whether a file is there already, as it seems; refuse to overwrite another one."""
    if not os.path.lexists(target):
        return False
    if os.path.isfile(target) and os.path.getsize(target) == os.path.getsize(source):
        return True
    raise FileError(
        f"{target}: is another file than the model's {source}; export to another folder"
    )


def _serialized(model: ModelProto) -> bytes:
    if model.ByteSize() > _MOST_FILE_BYTES:
        raise FileError("the model would be larger than 2 GiB; save its weights as external data")
    content: bytes = model.SerializeToString()
    return content


def _write(path: Path, content: bytes) -> None:
    with _saying_why(path), open(path, "xb") as file:
        file.write(content)


@contextmanager
def _saying_why(path: Path) -> Iterator[None]:
    """Turn an error of the system into one line."""
    try:
        yield
    except OSError as error:
        fix = FIXES.get(error.errno or 0, "choose a folder you may write to")
        raise FileError(f"{path}: cannot write: {error.strerror}; {fix}") from None
