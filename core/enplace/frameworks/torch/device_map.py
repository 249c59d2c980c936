"""A plan as a ``device_map`` of accelerate: a device for each module, whole blocks on one."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from posixpath import commonpath

import numpy as np

from enplace.names.layers import NONE
from enplace.names.passes import BACKWARD, in_pass, named_backward, split_pass
from enplace.names.scopes import INPUT
from enplace.text import listed
from enplace.values.arrays import BoolArray, IntArray
from enplace.values.op_kinds import OpKind
from enplace.values.problem import THROUGHPUT
from enplace.values.profile import Profile
from enplace.values.result import Result
from enplace.values.splits import rewriting
from enplace.writers.layers_per_stage import by_slot

PARAMETERS = "parameters"
"""Key of a profile's ``config``: by its path in the model, the op that holds each parameter."""

BUFFER_TYPE = "Buffer"
"""The type of an op that holds a buffer of the model."""

_NUMBERED = re.compile(r"\w*_\d+")
_MOST = 3

Device = int | str
"""A GPU's number, or ``cpu``."""


def block_of(scope: str) -> str:
    """Return the scope of the block that an op's scope lies in: up to the first number.

    >>> block_of("transformer/h_3/attn/c_proj")
    'transformer/h_3'
    >>> block_of("lm_head")
    'lm_head'
    """
    parts = scope.split("/")
    at = next((i for i, part in enumerate(parts) if _NUMBERED.fullmatch(part)), len(parts) - 1)
    return "/".join(parts[: at + 1])


def find_blocks(profile: Profile, *, as_run: bool = False) -> list[list[int]]:
    """Return the ops of each block that has parameters, with their gradients and updates.

    As in PyTorch's pipelines, an op of a module without any, such as a dropout or the loss, is in
    the block that makes the last of its inputs. What comes before all parameters is in the block of
    its first reader, unless the two run on different kinds of devices. So is what a module does
    first for itself with a tensor that others read too, such as a time embedding: its gradients
    are added up from the last module to the first.

    Parameters
    ----------
    as_run : bool, optional
        Return modules instead, and leave what they do first where a pipeline runs it: with its
        inputs.
    """
    block, label = _label_blocks(profile, str if as_run else block_of)
    backward = named_backward(profile)
    ahead = ~backward & ~profile.of_kind(OpKind.VARIABLE)
    begin = np.full(int(label.max(initial=0)) + 1, profile.n_ops)
    np.minimum.at(begin, label[ahead], np.flatnonzero(ahead))
    home = _find_homes(profile, label, ahead, begin, as_run)
    called: dict[int, set[int]] = defaultdict(set)  # the homes of the calls of each block
    for op in np.flatnonzero(ahead).tolist():
        if label[op] in home:
            called[block[op]].add(home[label[op]])
    back = np.flatnonzero(backward & (block != NONE)).tolist()
    home |= {label[op]: min(called[block[op]]) for op in back if len(called[block[op]]) == 1}
    _add_gradients(profile, label, home, begin)
    return _grouped([home.get(each, each) for each in label.tolist()])


def _find_homes(
    profile: Profile, label: IntArray, ahead: BoolArray, begin: IntArray, as_run: bool
) -> dict[int, int]:
    """Find the block that the forward ops of each label belong to, as its label.

    Parameters
    ----------
    label : int array, shape (n_ops,)
        From :func:`_label_blocks`.
    ahead : bool array, shape (n_ops,)
        The ops that go forward.
    begin : int array, shape (n_labels,)
        The first such op of each label.
    """
    runs = np.ones((len(begin), profile.time_us.shape[1]), dtype=bool)
    np.logical_and.at(runs, label[ahead], np.isfinite(profile.time_us[ahead]))
    names = profile.measured.config.get(PARAMETERS, {}).values()
    held = np.array([profile.index[name] for name in names], dtype=np.int64)
    source, op = profile.edge_source, profile.edge_op
    home = {each: each for each in label[op[ahead[op] & np.isin(source, held)]].tolist()}
    gets: dict[int, set[int]] = defaultdict(set)
    gives: dict[int, set[int]] = defaultdict(set)
    linked = ahead[source] & ahead[op]
    ends = label[source[linked]].tolist(), label[op[linked]].tolist()
    for maker, reader in zip(*ends, strict=True):
        gets[reader].add(maker)
        gives[maker].add(reader)
    # Data have a higher number than the op that reads them first.
    ordered = profile.topological_order
    order = [*dict.fromkeys(label[ordered[ahead[ordered]]].tolist())]
    scopes = [split_pass(profile.scopes[each])[1] for each in np.flatnonzero(ahead)]
    module = dict(zip(label[ahead].tolist(), scopes, strict=True))
    own = [] if as_run else _find_own(module, order, home, gets, gives)
    late = order[::-1]
    for labels, others, nearest in ((own, gives, min), (order, gets, max), (late, gives, min)):
        for each in labels:
            near = [home[other] for other in others[each] if other in home]
            if each not in home and near:
                found = nearest(near, key=begin.__getitem__)
                if (runs[each] & runs[found]).any():
                    home[each] = found
    return home


def _find_own(
    module: Mapping[int, str],
    order: Sequence[int],
    home: Mapping[int, int],
    gets: Mapping[int, set[int]],
    gives: Mapping[int, set[int]],
) -> list[int]:
    """List the labels of what modules do first, for themselves, with what others read too.

    Those that another reads come after it: their home is known once its own is.

    Parameters
    ----------
    module : mapping of int to str
        The scope of each label of a forward op.
    order : sequence of int
        These labels, makers first.
    home, gets, gives : mappings
        The homes of labels with parameters, and the makers and readers of each label.
    """
    own: dict[int, None] = {}
    for each in order:
        readers = gives.get(each, ())
        if each in home or not readers:
            continue
        around = commonpath([module[each], *(module[reader] for reader in readers)])
        if not around:
            continue

        def is_inside(other: int, around: str = around) -> bool:
            return f"{module[other]}/".startswith(f"{around}/")

        before = [maker for maker in gets.get(each, ()) if is_inside(maker)]
        given = {reader for maker in gets.get(each, ()) for reader in gives[maker]}
        if own.keys() >= {*before} if before else not all(map(is_inside, given)):
            own[each] = None
    return [*own][::-1]


def _add_gradients(
    profile: Profile, label: IntArray, home: dict[int, int], begin: IntArray
) -> None:
    """Find the blocks of gradients of calls between blocks, where names tell none.

    Such a call belongs to the block that its last input comes from. Its gradients read what it gets
    or gives, and lead to the gradients of its inputs. A sum of gradients belongs to the first of
    the blocks whose gradients it adds up.

    Parameters
    ----------
    label, begin : int array
        As for :func:`_find_homes`.
    home : dict of int to int
        The block of each label, as its label; those found are added.
    """
    back, late = in_pass(profile, BACKWARD), named_backward(profile)
    order = [op for op in profile.topological_order.tolist() if back[op] and label[op] not in home]
    reads: dict[int, list[int]] = {}
    for op in reversed(order):
        made = profile.edge_source[profile.edges_into(op)]
        reads[op] = np.unique(made[late[made]]).tolist()
        if late[made].all() and len(reads[op]) > 1:
            continue  # a sum
        readers = profile.readers_of(op)
        near = [*made[~late[made]].tolist(), *readers[back[readers]].tolist()]
        if homes := [home[label[each]] for each in near if label[each] in home]:
            home[label[op]] = max(homes, key=begin.__getitem__)
    for op in order:
        homes = [home[label[each]] for each in reads[op] if label[each] in home]
        if label[op] not in home and homes:
            home[label[op]] = min(homes, key=begin.__getitem__)


def count_elsewhere(profile: Profile, device: IntArray) -> int:
    """Count the forward ops that a plan puts elsewhere than stages made of modules run them.

    Those have no parameters, and run with the module that makes the last of their inputs.
    """
    holds, ahead = profile.of_kind(OpKind.VARIABLE), ~named_backward(profile)
    found = 0
    for ops in map(np.array, find_blocks(profile, as_run=True)):
        homes = device[ops[holds[ops]]]
        found += int((device[ops[ahead[ops]]] != homes[0]).sum()) if len(homes) else 0
    return found


def _label_blocks(
    profile: Profile, unit_of: Callable[[str], str] = block_of
) -> tuple[IntArray, IntArray]:
    """Number the block of each op, or none, and what stays in one place: ops, or whole blocks.

    What holds nothing need not stay in one place, such as a dropout between layers. What takes
    batches from the same data does: inputs and targets may be parts of one tensor.
    """
    block = np.full(profile.n_ops, NONE)
    blocks, is_variable = _group(profile, unit_of), profile.of_kind(OpKind.VARIABLE)
    label = np.arange(profile.n_ops) + len(blocks)
    first: dict[str, int] = {}
    for op, (scope, group) in enumerate(zip(profile.scopes, profile.colocation, strict=True)):
        if scope == INPUT and group:
            label[op] = first.setdefault(group, label[op])
    for at, ops in enumerate(blocks):
        block[ops] = at
        if is_variable[ops].any():
            label[ops] = at
    return block, label


def _grouped(labels: Iterable[int]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for op, label in enumerate(labels):
        found.setdefault(label, []).append(op)
    return [*found.values()]


def find_modules(profile: Profile) -> list[list[int]]:
    """Return the ops of each module, with their gradients and updates."""
    return _group(profile, str)


def _group(profile: Profile, unit_of: Callable[[str], str]) -> list[list[int]]:
    units: dict[str, list[int]] = {}
    for op, scope in enumerate(profile.scopes):
        _, module = split_pass(scope)
        if module and module != INPUT:
            units.setdefault(unit_of(module), []).append(op)
    return [*units.values()]


def why_no_map(result: Result) -> str:
    """Say what a map of modules cannot hold: split ops, and divided blocks."""
    profile = result.schedule.problem.measured_profile
    if not profile.measured.config.get(PARAMETERS):
        return "the profile is not of one PyTorch model; profile a script that trains one"
    if result.plan.splits:
        return f"the plan {rewriting(result.plan.splits)}, and a device map only places modules"
    device = result.plan.device.tolist()
    divided = []
    for group in _grouped(_label_blocks(profile)[1].tolist()):
        here = {device[op] for op in group}
        if len(here) > 1:
            _, scope = split_pass(profile.scopes[group[0]])
            divided.append(block_of(scope))
    if not divided:
        return _why_not_shared(profile, device)
    shown = listed([f"'{name}'" for name in divided[:_MOST]])
    more = f" and {len(divided) - _MOST} more" if len(divided) > _MOST else ""
    return (
        f"{shown}{more} would be divided, and accelerate moves tensors only between modules; make "
        f"a plan with --grain block"
    )


def _why_not_shared(profile: Profile, device: Sequence[int]) -> str:
    """Name a module that reads a parameter of another on a different device; empty if none does.

    Accelerate moves what a module gets, such as a buffer of the model.
    """
    for source, _, op, _ in profile.edges.tolist():
        is_held = profile.kinds[source] == OpKind.VARIABLE
        is_parameter = is_held and profile.op_types[source] != BUFFER_TYPE
        if is_parameter and device[source] != device[op]:
            reader, home = (split_pass(profile.scopes[each])[1] for each in (op, source))
            return (
                f"'{reader}' reads a weight of '{home}', and accelerate keeps shared weights on "
                f"one device; make a plan with --colocate '^{reader}/|^{home}/'"
            )
    return ""


def write_map(result: Result) -> str:
    """Return the map as JSON, for ``device_map=`` of accelerate and transformers."""
    return f"{json.dumps(device_map(result), indent=2)}\n"


def about_map(result: Result) -> list[str]:
    """Say how Python sees unlike GPUs as the map does, and that layers go to and fro, if they do.

    Accelerate hides no transfer.
    """
    notes = [
        f"Start Python with {slot}: numbers then follow nvidia-smi; write the cards in its order."
        for slot in [by_slot(result)]
        if slot
    ]
    placed = device_map(result).items()
    layers = [device for name, device in placed if name.rpartition(".")[2].isdecimal()]
    turns = sum(a != b for a, b in pairwise(layers))
    if turns < len({*layers}):
        return notes
    says = (
        f"From layer to layer, the device changes {turns} times. Accelerate runs one device after "
        f"the other, so none of these transfers is hidden"
    )
    if result.plan.objective == THROUGHPUT:
        return [*notes, f"{says}."]
    return [*notes, f"{says}; --objective throughput gives consecutive layers to each device."]


def device_map(result: Result) -> dict[str, Device]:
    """Return the device of each module, in the order of the model's parameters."""
    problem, device = result.schedule.problem, result.plan.device.tolist()
    profile, devices = problem.measured_profile, problem.cluster.devices
    gpus = [each.name for each in devices if each.kind == "gpu"]
    names = [gpus.index(each.name) if each.name in gpus else "cpu" for each in devices]
    paths: Mapping[str, str] = profile.measured.config[PARAMETERS]
    placed = {path: names[device[profile.index[name]]] for path, name in paths.items()}
    return folded(placed)


def folded(placed: Mapping[str, Device]) -> dict[str, Device]:
    """Name the largest modules that lie on one device whole, but each numbered one by itself.

    >>> folded({"wte.weight": 0, "h.0.mlp.weight": 0, "h.0.mlp.bias": 0, "h.1.mlp.weight": 1})
    {'wte': 0, 'h.0': 0, 'h.1': 1}
    """
    found: dict[str, Device] = {}

    def fold(prefix: str, own: Mapping[str, Device]) -> None:
        children: dict[str, dict[str, Device]] = {}
        for path, device in own.items():
            head = path[len(prefix) :].partition(".")[0]
            children.setdefault(prefix + head, {})[path] = device
        for child, inside in children.items():
            is_block = child.rpartition(".")[2].isdecimal()
            below = [part for path in inside for part in path[len(child) :].split(".")]
            is_unit = is_block or not any(map(str.isdecimal, below))
            if child in inside or (is_unit and len({*inside.values()}) == 1):
                found[child] = next(iter(inside.values()))
            else:
                fold(f"{child}.", inside)

    fold("", placed)
    return found
