"""The pass that an op belongs to: forward, backward or update.

A profile may say it. This is the only module that knows how TensorFlow, Keras and our own readers
name passes, for profiles that do not.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from enplace.values.arrays import marked
from enplace.values.op_kinds import OpPass
from enplace.values.problem import BoolArray
from enplace.values.profile import Profile

BACKWARD, UPDATE = "gradients", "update"
"""First part of the scopes of backward ops, and of ops that write variables."""

_OF_HEAD = {"": OpPass.FORWARD, BACKWARD: OpPass.BACKWARD, UPDATE: OpPass.UPDATE}
"""Passes by the first parts of scopes that name one, not a layer."""

TRAIN_OP = "train_op"
"""Scope of the training op in the scripts of our GPU profiles."""

_TAPE = re.compile(r"gradient_tape(_\d+)?")
_OPTIMIZER = re.compile(
    r"(adam|adam_?w|adamax|nadam|sgd|rmsprop|adagrad|adadelta|adafactor|ftrl|lion|muon|lamb)(_\d+)?",
    re.IGNORECASE,
)
_GRADIENT_OF_OP = re.compile(r".*_[gG]rad(_\d+)?")
_GRADIENT_OF_LOSS = re.compile(r"grad_ys_\d+")
_NO_LAYER = re.compile(r"gradients(_\d+)?|train_op|update|optimizer|\w+_grad")


def split_pass(scope: str) -> tuple[str, str]:
    """Split the pass off a scope.

    >>> split_pass("gradients/lstm0/t3")
    ('gradients', 'lstm0/t3')
    >>> split_pass("lstm0/t3")
    ('', 'lstm0/t3')
    """
    head, _, rest = scope.partition("/")
    return (head, rest) if head in _OF_HEAD else ("", scope)


def last_parts(name: str) -> str:
    """Find what an op is called within its scope; a backward op, also what it is the gradient of.

    >>> last_parts("gradients/t3/cell_1/MatMul_grad/MatMul_1")
    'MatMul_grad/MatMul_1'
    >>> last_parts("t3/cell_1/MatMul")
    'MatMul'
    """
    parts = name.split("/")
    return "/".join(parts[-2:] if any(map(is_gradient_of_op, parts[-2:-1])) else parts[-1:])


def pass_of_scope(scope: str) -> str:
    """Tell the pass of an op from its scope, as a profile says it."""
    return _OF_HEAD[split_pass(scope)[0]]


@lru_cache(maxsize=4)
def scopes_by_pass(profile: Profile) -> tuple[str, ...]:
    """Return the scope of each op below its pass: ``gradients/lstm0`` for a backward op.

    The pass is what the profile says, or else what the scope begins with.
    """
    if not any(profile.op_passes):
        return profile.scopes
    named = zip(profile.op_passes, profile.scopes, profile.op_names, strict=True)
    return tuple(_below_pass(said, scope, name) for said, scope, name in named)


def _below_pass(said: str, scope: str, op_name: str) -> str:
    head, own = split_pass(scope)
    if not said or _OF_HEAD[head] == said:
        return scope
    wanted = next(each for each, its_pass in _OF_HEAD.items() if its_pass == said)
    return "/".join(filter(None, (wanted, own or op_name.rpartition("/")[0])))


def in_pass(profile: Profile, *passes: str) -> BoolArray:
    """Find the ops whose scopes begin with one of some passes; shape (n_ops,)."""
    scopes = scopes_by_pass(profile)
    begins = {scope: scope.split("/")[0] in passes for scope in set(scopes)}
    return np.array([begins[scope] for scope in scopes])


def named_backward(profile: Profile) -> BoolArray:
    """Find the backward and update ops: those listed, or else those of these passes; (n_ops,)."""
    known = profile.measured.backward
    return in_pass(profile, BACKWARD, UPDATE) if known is None else marked(profile.n_ops, known)


def is_no_layer(part: str) -> bool:
    """Return whether a part of a scope names a pass or the gradient of an op, not a layer."""
    return _NO_LAYER.fullmatch(part) is not None


def is_gradient_of_op(part: str) -> bool:
    """Return whether a part of a scope belongs to one op's gradient: ``MatMul_grad``."""
    return _GRADIENT_OF_OP.fullmatch(part) is not None


def is_gradient_of_loss(part: str) -> bool:
    """Return whether TensorFlow 1 begins a backward pass with this part: ``grad_ys_0``."""
    return _GRADIENT_OF_LOSS.fullmatch(part) is not None


def is_tape(part: str) -> bool:
    """Return whether a part of a name is the scope of TensorFlow 2's gradient tape."""
    return _TAPE.fullmatch(part) is not None


def is_optimizer(part: str) -> bool:
    """Return whether a part of a name is a Keras optimiser's."""
    return _OPTIMIZER.fullmatch(part) is not None


def is_in_backward_scope(op_name: str) -> bool:
    """Return whether an op's name, as TensorFlow made it, has the scope of a backward pass."""
    return any(part in (BACKWARD, "gradient_tape") for part in op_name.split("/"))
