"""SavedModels: a training signature unchanged, or an inference signature, trained if asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from enplace.files.reading import refuse_pipe
from enplace.frameworks.source import Source
from enplace.frameworks.tensorflow.capture import step_of
from enplace.frameworks.tensorflow.error_text import first_line
from enplace.frameworks.tensorflow.open.sample_batches import sample_batches, sample_targets
from enplace.frameworks.tensorflow.step import Batch, LoadError, Step

_DEFAULT = "serving_default"


def load_saved_model(source: Source) -> Step:
    """Extract the step that a signature does; with a loss, one that trains it.

    Raises
    ------
    LoadError
        If the folder cannot be read or has no such signature.
    FileError
        If a file in it is a named pipe.
    """
    chosen, others, signature, _loaded = _open(source)
    inputs = signature.inputs[: len(signature.inputs) - len(signature.captured_inputs)]
    batches = sample_batches(inputs, source.batch_size)
    if source.text("loss"):
        return _training_step(signature, batches, source)
    step = step_of(source.name, signature, _calls(batches))
    if source.text("signature") or not others:
        return step
    return replace(step, function=chosen, left_out=tuple(others))


def open_signature(source: Source) -> tuple[str, ConcreteFunction, Any]:
    """Return the name and the function of the signature, and what keeps its variables.

    Raises
    ------
    LoadError, FileError
        As :func:`load_saved_model`.
    """
    chosen, _, signature, loaded = _open(source)
    return chosen, signature, loaded


def _open(source: Source) -> tuple[str, list[str], ConcreteFunction, Any]:
    """Load the folder; return the signature's name, those of others, its function, and the rest."""
    for pattern in ("*", "*/*"):
        for path in Path(source.path).glob(pattern):
            refuse_pipe(path)
    try:
        loaded = tf.saved_model.load(source.path)  # it keeps the variables
        signatures = dict(loaded.signatures)
    except Exception as error:
        reason = first_line(error)
        raise LoadError(f"{source.path}: TensorFlow cannot read it: {reason}") from None
    chosen, *others = _by_wish(sorted(signatures), source)
    return chosen, others, signatures[chosen], loaded


def _calls(batches: Sequence[Batch]) -> list[list[Any]]:
    return [[tf.constant(part) for part in batch] for batch in batches]


def _by_wish(known: Sequence[str], source: Source) -> list[str]:
    """Order the names of signatures, the wanted one first."""
    wanted = source.text("signature") or (known[0] if len(known) == 1 else _DEFAULT)
    if not known:
        raise LoadError(
            f"{source.path}: it has no signature; save it with "
            f"tf.saved_model.save(model, folder, signatures=model.function)"
        )
    if wanted not in known:
        raise LoadError(f"{source.path}: no signature '{wanted}'; choose one of {', '.join(known)}")
    return [wanted, *(name for name in known if name != wanted)]


def _training_step(signature: ConcreteFunction, batches: Sequence[Batch], source: Source) -> Step:
    """Make a training step from an inference signature."""
    import keras

    variables = signature.graph.trainable_variables
    if not variables:
        raise LoadError(
            f"{source.path}: its signature has no variables to train; leave out the loss, or open "
            f"the script that trains it"
        )
    try:
        loss, optimizer = (
            keras.losses.get(source.text("loss")),
            keras.optimizers.get(source.text("optimizer")),
        )
    except ValueError as error:
        raise LoadError(f"{source.path}: {first_line(error)}") from None
    optimizer.build(variables)
    n_inputs = len(batches[0])

    def outputs_of(inputs: Sequence[Any]) -> list[Any]:
        return [o for o in tf.nest.flatten(signature(*inputs)) if o.dtype.is_floating]

    @tf.function
    def train_step(*batch: Any) -> Any:
        with tf.GradientTape() as tape:
            pairs = zip(batch[n_inputs:], outputs_of(batch[:n_inputs]), strict=True)
            total = tf.add_n([tf.reduce_mean(loss(target, output)) for target, output in pairs])
        gradients = tape.gradient(total, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": total}

    outputs = outputs_of([tf.constant(part) for part in batches[0]])
    targets = sample_targets(outputs, [source.text("loss")] * len(outputs), source.batch_size)
    calls = _calls([(*b, *t) for b, t in zip(batches, targets, strict=True)])
    return step_of(source.name, train_step.get_concrete_function(*calls[0]), calls)
