"""Saved Keras models, trained on sample batches as ``model.fit`` would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from enplace.frameworks.source import Source
from enplace.frameworks.tensorflow.error_text import first_line
from enplace.frameworks.tensorflow.keras_file import check_keras_file
from enplace.frameworks.tensorflow.open.sample_batches import sample_batches, sample_targets
from enplace.frameworks.tensorflow.open.scripts import Recorder, plain_keras
from enplace.frameworks.tensorflow.step import LoadError, Step


def load_keras(source: Source) -> Step:
    """Extract the training step of a saved Keras model.

    Loss and optimiser are those of the source, else those that the model was saved with.

    Raises
    ------
    LoadError
        If the file is not a Keras model, or does not say enough to train it.
    """
    recorder = Recorder(source.name, lambda: source.path)
    with plain_keras(recorder.dropped), recorder.hooked():
        model = _read(source)
        losses = _compile(model, source)
        dataset = _dataset(model, losses, source)
        try:
            model.fit(dataset, verbose=0)
        except Exception as error:
            recorder.ended(f"{source.path}: training on sample batches fails: {_brief(error)}")
    return recorder.step()


def _read(source: Source) -> Any:
    import keras

    check_keras_file(Path(source.path))  # it may have been replaced since it was chosen
    try:
        return keras.saving.load_model(source.path, compile=not source.text("loss"))
    except Exception as error:
        raise LoadError(
            f"{source.path}: Keras cannot read it: {_brief(error)}; give loss and optimiser, or, "
            f"if the model has classes of its own, open the script that trains it"
        ) from None


def _compile(model: Any, source: Source) -> list[str]:
    """Give the model its loss and optimiser; return the name of each output's loss."""
    if source.text("loss"):
        try:
            model.compile(source.text("optimizer"), source.text("loss"))
        except Exception as error:
            raise LoadError(f"{source.path}: {_brief(error)}") from None
    if not getattr(model, "optimizer", None) or not getattr(model, "loss", None):
        raise LoadError(
            f"{source.path}: the model was saved without loss and optimiser; give them, such as "
            f"--loss mean_squared_error --optimizer adam"
        )
    if Path(source.path).suffix != ".keras" and not source.text("loss"):
        # An optimiser from an HDF5 file is built for a model without variables.
        optimizer = model.optimizer.from_config(model.optimizer.get_config())
        model.compile(optimizer, model.loss)
    return [_loss_name(loss) for loss in tf.nest.flatten(model.loss)]


def _loss_name(loss: Any) -> str:
    return loss if isinstance(loss, str) else str(getattr(loss, "name", loss))


def _dataset(model: Any, losses: list[str], source: Source) -> tf.data.Dataset:
    """Make sample batches of the shape that the model takes."""
    if not getattr(model, "inputs", None):
        raise LoadError(
            f"{source.path}: the model does not state the shape of its inputs; open the script "
            f"that trains it"
        )
    outputs = tf.nest.flatten(model.outputs)
    if len(losses) == 1:
        losses = losses * len(outputs)
    inputs = sample_batches(model.inputs, source.batch_size)
    targets = sample_targets(outputs, losses, source.batch_size)
    parts = [_one_or_all(part) for part in (zip(*inputs, strict=True), zip(*targets, strict=True))]
    return tf.data.Dataset.from_tensor_slices(tuple(parts))


def _one_or_all(columns: Any) -> Any:
    stacked = tuple(map(tf.stack, columns))
    return stacked if len(stacked) > 1 else stacked[0]


def _brief(error: Exception) -> str:
    """Return the first line of a library's error."""
    return first_line(error).rstrip(".") or type(error).__name__
