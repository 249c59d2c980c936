"""Lead files that TensorFlow itself reads and writes to where those of Python are led.

:mod:`enplace.processes.redirect` says when. Of the ops that take the name of a file, those that run
eagerly are led, and those of a session whose name is fed; in the graph of a function, none is.
"""

from __future__ import annotations

import glob
import importlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import _pywrap_events_writer as events
from tensorflow.python.client import session as sessions
from tensorflow.python.data.ops import readers
from tensorflow.python.lib.io import _pywrap_file_io as files
from tensorflow.python.lib.io import _pywrap_record_io as records
from tensorflow.python.lib.io import tf_record
from tensorflow.python.profiler.internal import _pywrap_profiler as profiler
from tensorflow.python.saved_model import pywrap_saved_model
from tensorflow.python.training import py_checkpoint_reader

from enplace.processes.redirect import Copies, copies, lead, led_path

OPS = {
    "SaveV2": ("write",),
    "RestoreV2": ("read",),
    "MergeV2Checkpoints": ("read", "write"),
    "WriteFile": ("write",),
    "ReadFile": ("read",),
    "CreateSummaryFileWriter": ("", "write"),
    **dict.fromkeys(("CacheDataset", "CacheDatasetV2"), ("", "fill")),
    **dict.fromkeys(("SaveDataset", "SaveDatasetV2"), ("", "write")),
    **dict.fromkeys(("SnapshotDataset", "SnapshotDatasetV2"), ("", "write")),
    **dict.fromkeys(("DatasetToTFRecord", "ExperimentalDatasetToTFRecord"), ("", "write")),
    "LoadDataset": ("read",),
    **dict.fromkeys(("TFRecordDataset", "TFRecordDatasetV2", "TextLineDataset"), ("read",)),
    **dict.fromkeys(("FixedLengthRecordDataset", "FixedLengthRecordDatasetV2"), ("read",)),
    **dict.fromkeys(("CSVDataset", "CSVDatasetV2", "ExperimentalCSVDataset"), ("read",)),
    **dict.fromkeys(("InitializeTableFromTextFile", "InitializeTableFromTextFileV2"), ("", "read")),
    "LoadAndRemapMatrix": ("read",),
    "GenerateVocabRemapping": ("read", "read"),
    "ShardedFilename": ("",),
}
"""What the first inputs of these ops are, where they are names of files.

A cache is read if it is complete, and else filled anew. So is a snapshot, but what completes it is
known to TensorFlow alone, so none is read.
"""

_FILE, _INDEX = "file://", ".index"
_PRINTS = ("SingleprintFromFP", "SingleprintFromSM")
_PASSING = ("Identity", "PlaceholderWithDefault", "StringJoin", "ShardedFilename", "Pack")


def redirect_tensorflow() -> None:
    """Lead files, if those of Python are led."""
    if (view := copies) is None:
        return
    for name in ("FileExists", "ReadFileToString", "Stat", "IsDirectory", "BufferedInputStream"):
        lead(files, name, "read")
    lead(files, "WriteStringToFile", "write")
    lead(files, "WritableFile", "change")
    lead(files, "CopyFile", "read", "write")
    lead(events, "EventsWriter", "write")
    lead(tf_record.TFRecordWriter, "__init__", "", "write")
    for name in ("RecordIterator", "RandomRecordReader"):
        lead(records, name, "read")
    lead(profiler.ProfilerSession, "start", "", "write")
    lead(pywrap_saved_model, "Save", "write")
    for name in ("CreateFingerprintDef", "ReadSavedModelFingerprint", *_PRINTS):
        lead(pywrap_saved_model.fingerprinting, name, "read")
    _replace_file_functions()
    _lead_eager_ops(view)
    _lead_feeds(view)
    _lead_datasets(view)
    _lead_hdf5()
    read = py_checkpoint_reader.NewCheckpointReader
    py_checkpoint_reader.NewCheckpointReader = lambda start: read(_led_prefix(view, start, "read"))


def _replace_file_functions() -> None:
    def create(path: str, *_: Any) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(path: str, to: str, overwrite: bool = False, *_: Any) -> None:
        if not overwrite and os.path.exists(to):
            raise tf.errors.AlreadyExistsError(None, None, f"{to} exists")
        os.replace(path, to)

    def delete(path: str, *_: Any) -> None:
        if not os.path.lexists(path):
            raise tf.errors.NotFoundError(None, None, f"{path}; no such file")
        os.remove(path)

    def delete_all(path: str, *_: Any) -> None:
        if not os.path.isdir(path):
            raise tf.errors.NotFoundError(None, None, f"{path}; no such folder")
        shutil.rmtree(path)

    def children(path: str, *_: Any) -> list[str]:
        if not os.path.isdir(path):
            raise tf.errors.NotFoundError(None, None, f"{path}; no such folder")
        return os.listdir(path)

    replaced: Mapping[str, Any] = {
        "CreateDir": create,
        "RecursivelyCreateDir": create,
        "RenameFile": rename,
        "DeleteFile": delete,
        "DeleteRecursively": delete_all,
        "GetChildren": children,
        "GetMatchingFiles": lambda pattern, *_: glob.glob(os.fsdecode(pattern)),
    }
    for name, function in replaced.items():
        setattr(files, name, _unless_remote(getattr(files, name), function))


def _unless_remote(usual: Any, function: Any) -> Any:
    def chosen(path: Any, *rest: Any) -> Any:
        return (usual if "://" in os.fsdecode(path) else function)(path, *rest)

    return chosen


def _lead_eager_ops(view: Copies) -> None:
    quick, usual = pywrap_tfe.TFE_Py_FastPathExecute, pywrap_tfe.TFE_Py_Execute

    def led(inputs: Sequence[Any], op: str) -> list[Any]:
        if op == "PrintV2":
            return [_led_stream(view, each) for each in inputs]
        ways = OPS[op]
        first = [_led_text(view, *pair) for pair in zip(inputs, ways, strict=False)]
        return [*first, *inputs[len(ways) :]]

    def led_quick(context: Any, op: str, name: Any, *inputs: Any) -> Any:
        if op == "MatchingFiles":
            return _matching(view, inputs[0], lambda names: quick(context, op, name, names))
        is_led = op in OPS or op == "PrintV2"
        return quick(context, op, name, *(led(inputs, op) if is_led else inputs))

    def led_usual(context: Any, device: Any, op: Any, inputs: Any, *rest: Any) -> Any:
        if (text := op.decode() if isinstance(op, bytes) else op) in OPS:
            inputs = [tf.convert_to_tensor(each) for each in led(inputs, text)]
        return usual(context, device, op, inputs, *rest)

    pywrap_tfe.TFE_Py_FastPathExecute, pywrap_tfe.TFE_Py_Execute = led_quick, led_usual


def _led_text(view: Copies, value: Any, way: str) -> Any:
    """Return texts, or a tensor of them, with their paths as the view has them."""
    if not way:
        return value
    if isinstance(value, list | tuple):
        return [_led_text(view, each, way) for each in value]
    known = value.numpy() if isinstance(value, tf.Tensor) else value
    if isinstance(known, np.ndarray):
        is_row = known.ndim == 1 and known.size
        return [_led_prefix(view, each, way) for each in known] if is_row else value
    return _led_prefix(view, known, way)


def _led_stream(view: Copies, text: Any) -> Any:
    """Return where ``tf.print`` prints, as the view has it."""
    if not isinstance(text, str) or not text.startswith(_FILE):
        return text
    return f"{_FILE}{led_path(view, text.removeprefix(_FILE), 'change')}"


def _matching(view: Copies, patterns: Any, find: Callable[[Any], Any]) -> Any:
    """Find files by patterns: copies, and those that have none and are not gone."""
    texts = np.ravel(patterns.numpy() if isinstance(patterns, tf.Tensor) else patterns)
    wholes = [view.whole(each) for each in texts]
    copied = [os.fsencode(view.copy_of(each)) for each in wholes if each is not None]
    names = find(tf.constant([*texts, *copied], tf.string)).numpy()
    return tf.constant([name for name in names if view.seen(_text(name)) == _text(name)], tf.string)


def _text(name: bytes) -> str:
    return os.path.abspath(os.fsdecode(name))


def _led_prefix(view: Copies, text: Any, way: str) -> Any:
    """Return a path, or the start of the names of a checkpoint, as the view has it."""
    whole = view.whole(text)
    if whole is None:
        return text
    whole = view.followed(whole)
    if way == "fill":
        way = "read" if os.path.exists(f"{whole}{_INDEX}") else "write"
    if way == "read" and os.path.lexists(f"{whole}{_INDEX}"):
        found = view.seen(f"{whole}{_INDEX}").removesuffix(_INDEX)
        return os.fsencode(found) if isinstance(text, bytes) else found
    return led_path(view, text, way)


def _lead_feeds(view: Copies) -> None:
    usual = sessions.BaseSession._do_run

    def led(self: Any, handle: Any, ops: Any, tensors: Any, feeds: Any, *options: Any) -> Any:
        ways = {key: way for key in feeds if (way := _way_of(key.deref()))}
        fed = {
            key: np.asarray(_led_prefix(view, value.item(), ways[key]), dtype=object)
            if key in ways and value.ndim == 0
            else value
            for key, value in feeds.items()
        }
        return usual(self, handle, ops, tensors, fed, *options)

    sessions.BaseSession._do_run = led


def _way_of(tensor: Any) -> str:
    """Return what is done with the file that a tensor names; empty if it names none."""
    if tensor.dtype != tf.string:
        return ""
    ways = {
        OPS[op.type][at] for op, at in _uses(tensor) if op.type in OPS and at < len(OPS[op.type])
    }
    return next((way for way in ("write", "fill", "read") if way in ways), "")


def _uses(tensor: Any) -> Iterator[tuple[Any, int]]:
    for op in tensor.consumers():
        yield from ((op, at) for at, given in enumerate(op.inputs) if given is tensor)
        if op.type in _PASSING:
            for output in op.outputs:
                yield from _uses(output)


def _lead_datasets(view: Copies) -> None:
    """Lead the names that data sets of files are given; each is then read in a function."""
    usual = readers._create_or_validate_filenames_dataset

    def led(filenames: Any, name: str | None = None) -> Any:
        if not isinstance(filenames, tf.data.Dataset):
            flat = tf.nest.map_structure(readers._normalise_fspath, filenames)
            named = tf.convert_to_tensor(flat, dtype_hint=tf.string)
            if hasattr(named, "numpy") and named.dtype == tf.string:
                filenames = _led_text(view, named, "read")
        return usual(filenames, name)

    readers._create_or_validate_filenames_dataset = led


def _lead_hdf5() -> None:
    try:
        format5 = importlib.import_module("h5py").h5f
    except ImportError:
        return
    for name, way in (("open", "change"), ("create", "write"), ("is_hdf5", "read")):
        lead(format5, name, way)
