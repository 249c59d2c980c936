"""How many layers each stage of a pipeline has, as other programs ask for it.

vLLM, Megatron, DeepSpeed, torchtitan and llama.cpp take counts of layers, in the order of the
model. What comes before the layers goes with the first stage, what comes after with the last.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

import numpy as np

from enplace.errors import PlanError
from enplace.names.whole import LayerChain, find_chain
from enplace.text import count, listed
from enplace.values.arrays import FloatArray, IntArray
from enplace.values.result import Result
from enplace.values.splits import rewriting
from enplace.writers.registry import Write, exporter

ABOUT_MARK = r"\d layers?( in stages on |, and the output as one more)"
"""What the files of all these exporters say of a plan."""


class Stage(NamedTuple):
    """A device, and the numbers of its layers; none on one that has only an end of the model."""

    device: int
    layers: tuple[int, ...]


def find_stages(result: Result, *, kinds: bool = True) -> list[Stage]:
    """Find the stages of a plan, in the order of the model.

    Parameters
    ----------
    kinds : bool
        Whether layers may be of several kinds, such as an encoder's and a decoder's.

    Raises
    ------
    PlanError
        If the plan is no such pipeline; the message says why.
    """
    chain, on = _whole_layers(result, kinds=kinds)
    stages = [
        Stage(device, tuple(layers))
        for device, layers in groupby(range(len(on)), key=on.__getitem__)
    ]
    label = _labels(result)
    for device, times in Counter(stage.device for stage in stages).items():
        if times > 1:
            parts = [_range(stage) for stage in stages if stage.device == device]
            raise PlanError(
                f"{label[device]} has layers {listed(parts)}, which are not consecutive; make a "
                f"plan with --objective throughput --pipeline 1f1b"
            )
    stages = _with_ends(result, chain, stages)
    if hosts := [label[stage.device] for stage in stages if not _is_gpu(result, stage.device)]:
        raise PlanError(f"{hosts[0]} has a part of the model, and stages are on GPUs; forbid it")
    if len(stages) == 1:
        raise PlanError(f"{label[stages[0].device]} has the whole model, so there are no stages")
    return stages


def _whole_layers(result: Result, *, kinds: bool) -> tuple[LayerChain, list[int]]:
    """Return the layers in the order of the model, and the device of each."""
    plan, profile = result.plan, result.schedule.problem.measured_profile
    if plan.splits:
        raise PlanError(
            f"the plan {rewriting(plan.splits)}, and layers run once and stay whole; "
            f"make one by another method"
        )
    if plan.replicas:
        raise PlanError("the plan runs a stage on several GPUs in turn; make one without replicas")
    chain = find_chain(profile)
    if chain is None:
        raise PlanError("the model has no numbered layers, such as layers/0, layers/1")
    if len(chain.kinds) > 1 and not kinds:
        named = listed([f"'{kind}'" for kind in chain.kinds])
        raise PlanError(f"the model has layers of several kinds, {named}; such a count has one")
    on = [plan.device[ops] for ops in chain.ops]
    for name, devices in zip(chain.names, on, strict=True):
        if (devices != devices[0]).any():
            where = listed([_labels(result)[device] for device in np.unique(devices).tolist()])
            raise PlanError(
                f"'{name}' is divided between {where}; make a plan with --whole '{chain.pattern}'"
            )
    return chain, [int(devices[0]) for devices in on]


def _with_ends(result: Result, chain: LayerChain, stages: Sequence[Stage]) -> list[Stage]:
    """Add a stage for an end of the model that is on a device without layers."""
    first, last = (_home(result, ops) for ops in (chain.before, chain.after))
    with_layers = [stage.device for stage in stages]
    for end, device, wanted in (
        ("first", first, with_layers[0]),
        ("last", last, with_layers[-1]),
    ):
        if device in with_layers and device != wanted:
            ops = chain.before if end == "first" else chain.after
            raise _misplaced(result, ops, end, wanted)
    found = [*stages]
    if first is not None and first not in with_layers:
        found.insert(0, Stage(first, ()))
    if last is not None and last not in with_layers:
        if last == first:
            raise _misplaced(result, chain.after, "last", with_layers[-1])
        found.append(Stage(last, ()))
    return found


def _misplaced(result: Result, ops: IntArray, end: str, wanted: int) -> PlanError:
    """Say that an end of the model is not where the layers beside it are."""
    profile = result.schedule.problem.measured_profile
    away = ops[result.plan.device[ops] != wanted]
    op = int(away[_shares(result, away).argmax()])
    label = _labels(result)
    return PlanError(
        f"'{profile.scopes[op] or profile.op_names[op]}' is on {label[result.plan.device[op]]}, "
        f"but the {end} layers are on {label[wanted]}; pin it there"
    )


def _home(result: Result, ops: IntArray) -> int | None:
    """Return the device that has most of the weights of some ops; None without ops."""
    if not len(ops):
        return None
    return int(np.bincount(result.plan.device[ops], weights=_shares(result, ops)).argmax())


def _shares(result: Result, ops: IntArray) -> FloatArray:
    """Return the bytes of each op's variables; without any, the times decide."""
    profile = result.schedule.problem.measured_profile
    time_us = np.nanmin(profile.time_us[ops], axis=1)
    shares: FloatArray = profile.persistent_bytes[ops] + 1e-6 * time_us + 1e-12
    return shares


def _labels(result: Result) -> list[str]:
    return [each.label for each in result.schedule.problem.cluster.devices]


def _is_gpu(result: Result, device: int) -> bool:
    return device in result.schedule.problem.cluster.gpus


def _range(stage: Stage) -> str:
    first, last = stage.layers[0], stage.layers[-1]
    return f"{first}" if first == last else f"{first} to {last}"


def exporter_of_stages(name: str, title: str, suffix: str) -> Callable[[Write], Write]:
    """Register an exporter that raises a :class:`PlanError` where it cannot hold a plan."""

    def register(write: Write) -> Write:
        return exporter(
            name, title=title, suffix=suffix, why_not=why_not_by(write), mark=ABOUT_MARK
        )(write)

    return register


def why_not_by(write: Write) -> Callable[[Result], str]:
    """Make the explanation of an exporter from what it raises."""

    def why_not(result: Result) -> str:
        try:
            write(result)
        except PlanError as error:
            return str(error)
        return ""

    return why_not


def about(result: Result, stages: Sequence[Stage]) -> str:
    """Say which GPU each stage is for, and how a program is made to see them so."""
    label = _labels(result)
    total = count(sum(len(stage.layers) for stage in stages), "layer")
    text = f"{total} in stages on {listed([label[stage.device] for stage in stages])}."
    gpus = result.schedule.problem.cluster.gpus
    numbers = [gpus.index(stage.device) for stage in stages]
    order = f"CUDA_VISIBLE_DEVICES={','.join(map(str, numbers))}"
    return f"{text} {_put(result, order if numbers != [*range(len(numbers))] else '')}".rstrip()


def by_slot(result: Result) -> str:
    """Return the variable with which CUDA numbers GPUs as nvidia-smi does; empty if all are alike.

    Otherwise CUDA's first one is the fastest, as in a cluster that was measured.
    """
    problem = result.schedule.problem
    cluster, measured = problem.cluster, problem.measured_profile.measured
    gpus = [cluster.devices[device] for device in cluster.gpus]
    n_kinds = len({(each.model, each.capacity_bytes, each.speed) for each in gpus})
    own = None if measured.estimated else measured.cluster
    is_measured = own is not None and cluster.name == own.name
    return "" if n_kinds < 2 or is_measured else "CUDA_DEVICE_ORDER=PCI_BUS_ID"


def _put(result: Result, order: str = "") -> str:
    """Say which variables a command needs, so that it sees GPUs as the plan does; empty if none."""
    slot = by_slot(result)
    variables = " ".join(filter(None, (slot, order)))
    why = " Numbers then follow nvidia-smi; write the cards in its order." if slot else ""
    return f"Put {variables} before the command.{why}" if variables else ""


@exporter_of_stages("vllm", "layers per stage of vLLM", ".vllm.env")
def vllm_partition(result: Result) -> str:
    """Write the variable with which vLLM starts, as a file of its environment."""
    stages = find_stages(result, kinds=False)
    counts = ",".join(str(len(stage.layers)) for stage in stages)
    return (
        f"# {about(result, stages)}\n"
        f"# Start with: vllm serve MODEL --pipeline-parallel-size {len(stages)}\n"
        f"VLLM_PP_LAYER_PARTITION={counts}\n"
    )


@exporter_of_stages("megatron", "layout of Megatron", ".megatron.txt")
def megatron_layout(result: Result) -> str:
    """Write the flags of a Megatron run: E is the embedding, t a layer, L the loss."""
    stages = find_stages(result, kinds=False)
    parts = [f"t*{len(stage.layers)}" if stage.layers else "" for stage in stages]
    parts[0], parts[-1] = f"E{parts[0]}", f"{parts[-1]}L"
    return (
        f"# {about(result, stages)}\n"
        f"--pipeline-model-parallel-size {len(stages)} "
        f"--pipeline-model-parallel-layout '{'|'.join(parts)}'\n"
    )


@exporter_of_stages("deepspeed", "PipelineModule of DeepSpeed", ".deepspeed.py")
def deepspeed_module(result: Result) -> str:
    """Write a PipelineModule with these stages, whatever comes before and after its layers."""
    stages = find_stages(result)
    ends = [*accumulate(len(stage.layers) for stage in stages)]
    return _DEEPSPEED.format(about=about(result, stages), n=len(stages), total=ends[-1], ends=ends)


_DEEPSPEED = '''"""A PipelineModule of DeepSpeed with the stages of a plan.

{about}
Name the class of your layers; what is before them is in the first stage, what is after in the last:

    model = PlannedPipelineModule(layers, num_stages={n}, partition_method="type:MyLayer")

Weights that two stages share, such as tied embeddings, stay equal only as TiedLayerSpec.
"""

from deepspeed.pipe import PipelineModule

ENDS = {ends}
"""The number of layers up to the end of each stage."""


class PlannedPipelineModule(PipelineModule):
    def _partition_layers(self, method):
        found = self._find_layer_type(method.partition(":")[2])
        if len(found) != {total}:
            raise ValueError(f"the plan has {total} layers, but {{method}} finds {{len(found)}}")
        begins = [*found, found[-1] + 1]
        self.parts = [0, *(begins[end] for end in ENDS[:-1]), len(self._layer_specs)]
        self._set_bounds(*self.parts[self.stage_id : self.stage_id + 2])
'''


@exporter_of_stages("llama-cpp", "flags of llama.cpp", ".llama-cpp.txt")
def llama_flags(result: Result) -> str:
    """Write the flags that put each layer on its device.

    Shares (``-ts``) give each GPU its layers in turn, and the last one the output besides; ``-ngl``
    leaves the first layers to the CPU. Layers in another order are moved by name (``-ot``).
    """
    chain, on = _whole_layers(result, kinds=False)
    gpus = result.schedule.problem.cluster.gpus
    n_host = next((at for at, device in enumerate(on) if device in gpus), len(on))
    homes: list[int] = []
    for device in on[n_host:]:
        homes.append(device if device in gpus else homes[-1])
    order, last = list(dict.fromkeys(homes)), _home(result, chain.after)
    if last is not None and last in gpus and last not in order:
        order.append(last)
    if not order or (len(order) == 1 and not n_host):
        raise PlanError("the whole model is on one device, so there is nothing to divide")
    if last not in (None, order[-1]):
        raise _misplaced(result, chain.after, "last", order[-1])
    shares = [homes.count(device) for device in order]
    usual = np.repeat(order, shares).tolist()
    moved = defaultdict(list)
    for layer, (device, at) in enumerate(zip(on[n_host:], usual, strict=True), n_host):
        if device != at:
            moved[device].append(f"{layer}")
    shares[-1] += 1  # the output
    name = {device: f"CUDA{number}" for number, device in enumerate(gpus)}
    flags = f"-sm layer -ngl {len(on) + 1 - n_host} -dev {','.join(name[d] for d in order)}"
    lines = [
        f"# {count(len(on), 'layer')}, and the output as one more; the input stays on the CPU.",
        *(f"# {put}" for put in [_put(result)] if put),
        f"{flags} -ts {','.join(map(str, shares))}",
        *(
            f"-ot 'blk\\.({'|'.join(layers)})\\.={name.get(device, 'CPU')}'"
            for device, layers in moved.items()
        ),
    ]
    if moved:
        lines.insert(1, "# -ts alone takes layers in turn. -ot moves weights, not keys and values.")
    return "\n".join([*lines, ""])
