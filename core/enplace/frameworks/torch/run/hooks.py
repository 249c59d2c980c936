"""A model whose modules are on several devices: hooks send each module what it is called with.

Autograd sends the gradients back the same way. Where tensors of several devices meet outside of a
module with a device, as in a sum of what two modules gave, they meet on that of the module that is
running, or of the first one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from enplace.errors import ClusterError, PlanError
from enplace.frameworks.torch.names import scope_of_module
from enplace.frameworks.torch.record.modules import joined, path_of_call, shared_paths
from enplace.frameworks.torch.record.variables import names_of
from enplace.frameworks.torch.run.forward import ForwardPass
from enplace.names.passes import BACKWARD, UPDATE
from enplace.names.scopes import INPUT
from enplace.text import count, listed
from enplace.values.cluster import Cluster
from enplace.values.plan import Plan
from enplace.values.splits import Split

_OTHERS = (BACKWARD, UPDATE, INPUT)
_CAST = "_to_copy"
_MOST = 3


def modules_in_plan(
    model: torch.nn.Module, planned: Mapping[str, int], head: str = "", *, in_stages: bool = False
) -> dict[str, int] | None:
    """Find the device of each module that a plan has ops of; None if it is for another model.

    Parameters
    ----------
    planned : mapping of str to int
        The device of each op, by its name.
    head : str
        The script's variable with the model, if the plan has several models.
    in_stages : bool
        Whether calls in a module that only has other modules follow these, as in a pipeline.

    Raises
    ------
    PlanError
        If a module is divided between devices.
    """
    on: dict[str, set[int]] = defaultdict(set)
    for name, device in planned.items():
        scope, _, op = name.rpartition("/")
        is_cast = in_stages and op.startswith(_CAST)  # it is where the module is called
        if name.partition("/")[0] not in _OTHERS and not is_cast:
            on[scope].add(device)
    if not has_parameters(model, planned, [head]):
        return None
    modules = dict(model.named_modules(remove_duplicate=False))
    scopes = _scopes(modules, head)
    found = {path: on[scope] for path, scope in scopes.items() if scope in on}
    divided = [
        path
        for path, devices in found.items()
        if len(devices) > 1 and path and _has_parts(modules[path], inside=not in_stages)
    ]  # ops of the root, and a layer without parameters that is called twice, follow others
    if divided:
        shown = listed([f"'{path}'" for path in divided[:_MOST]])
        more = f" and {len(divided) - _MOST} more" if len(divided) > _MOST else ""
        raise PlanError(
            f"{shown}{more} would be divided between devices, and PyTorch moves tensors only "
            f"between modules; make a plan with --grain {'block' if in_stages else 'module'}, or "
            f"run it op by op with enplace run{' without --pipeline' * in_stages}"
        )
    return {path: min(devices) for path, devices in found.items() if len(devices) == 1}


def _scopes(paths: Iterable[str], head: str) -> dict[str, str]:
    """Return the scope of each module of a model, by its path."""
    return {path: scope_of_module(joined(head, path)) for path in paths}


def has_parameters(
    model: torch.nn.Module, planned: Mapping[str, int], heads: Sequence[str]
) -> bool:
    """Whether a plan has an op for each parameter of a model, all under one of some heads."""
    paths = [path.rpartition(".") for path, _ in model.named_parameters()]
    return any(
        all(
            "/".join(filter(None, (scope_of_module(joined(head, owner)), own))) in planned
            for owner, _, own in paths
        )
        for head in heads
    )


def _has_parts(module: torch.nn.Module, *, inside: bool) -> bool:
    """Whether a module itself has parameters, or modules inside if these count."""
    own = module.parameters(recurse=False)
    return any(True for _ in own) or (inside and any(True for _ in module.children()))


def torch_devices(cluster: Cluster, plan: Plan) -> dict[int, torch.device]:
    """Return PyTorch's device for each device that a plan uses.

    Where those are CPUs alone, they are labels of the one CPU that PyTorch has.

    Raises
    ------
    ClusterError
        If this machine does not have them.
    """
    used = [int(device) for device in np.unique(plan.device)]
    found = {}
    there = torch.cuda.device_count()
    for number in used:
        device = cluster.devices[number]
        host, _, at = device.name.rpartition(":")
        if "/" in host:
            raise ClusterError(
                f"the plan has '{device.name}' on another host; a process runs on one"
            )
        if device.kind == "gpu" and not (at.isdecimal() and int(at) < there):
            names = listed([cluster.devices[each].name for each in used])
            raise ClusterError(
                f"the plan uses {names}, and PyTorch sees {there} GPUs here; place the model for "
                f"this machine, or prove the plan op by op: enplace run --devices cpu:{len(used)}"
            )
        found[number] = torch.device("cpu" if device.kind == "cpu" else f"cuda:{at}")
    return found


def place_model(
    model: torch.nn.Module,
    planned: Mapping[str, int],
    devices: Mapping[int, torch.device],
    splits: Sequence[Split] = (),
) -> PlacedModules | None:
    """Place a model; None if the plan is for another one.

    Parameters
    ----------
    planned : mapping of str to int
        The device of each op, by its name.
    devices : mapping of int to torch.device
        As :func:`torch_devices` finds them.
    splits : sequence of Split
        What the plan does not keep for the backward pass.

    Raises
    ------
    PlanError
        If a module is divided between devices.
    """
    added = {each.added for each in splits}
    planned = {name: device for name, device in planned.items() if name not in added}
    for head in ("", *names_of(model)):
        modules = modules_in_plan(model, planned, head)
        if modules is not None:
            real = {path: devices[at] for path, at in modules.items()}
            placed = PlacedModules(model, real, len({*modules.values()}))
            if splits:
                placed.keep_less(splits, planned, head)
            return placed
    return None


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Send a tensor to a device; its gradient comes back."""
    return tensor.to(device, non_blocking=True)


class PlacedModules:
    """A model whose modules are placed.

    Attributes
    ----------
    device : mapping of str to torch.device
        Of each module that has ops itself, by its path; ``n_devices`` counts those of the plan,
        which may be labels of one.
    called : dict of str to bool
        The modules that ran, and whether each time on their device.
    """

    def __init__(
        self, model: torch.nn.Module, device: Mapping[str, torch.device], n_devices: int
    ) -> None:
        self.model, self.device, self._n_devices = model, device, n_devices
        self.called: dict[str, bool] = {}
        self._homes: dict[str, list[str]] = {}
        self._running: list[str] = []
        self._forward: ForwardPass | None = None
        self._hooks: list[Any] = []
        self._own = dict(model.named_modules())
        self._shared = shared_paths(model)
        several = len({*device.values()}) > 1
        self._mode = _Meeting(self) if several else None
        self.move()
        for path, module in self._own.items():
            self._hooks += [
                module.register_forward_pre_hook(self._begin(path), with_kwargs=True),
                module.register_forward_hook(self._end, always_call=True),
            ]
        if self._mode is not None:
            self._mode.__enter__()

    def keep_less(self, splits: Sequence[Split], planned: Collection[str], head: str) -> None:
        """Keep only what a plan keeps of what forward ops make; ``head`` begins their names."""
        scopes = _scopes(dict(self.model.named_modules(remove_duplicate=False)), head)
        self._forward = made = ForwardPass(splits, planned, lambda: scopes[self._running[-1]])
        if made.has_one_update:  # with several optimisers, the turns go on
            self._hooks.append(register_optimizer_step_post_hook(lambda *_: made.end_step()))

    def remove(self) -> None:
        """Let the model run as before, wherever it is."""
        for hook in self._hooks:
            hook.remove()
        if self._mode is not None:
            self._mode.__exit__(None, None, None)

    def move(self) -> None:
        """Move parameters and buffers, with their gradients, to where they are planned.

        One that several modules have is where the first one is; others are sent it as they run.
        """
        moved: set[int] = set()
        self._homes.clear()
        for path, module in self._own.items():
            device = self._near(path)
            if device is None:
                continue
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) not in moved:
                    moved.add(id(_move(module, name, parameter, device)))
                    self._homes.setdefault(path, []).append(name)
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.device != device:
                    module._buffers[name] = buffer.to(device)

    def _near(self, path: str) -> torch.device | None:
        """Return the device of a module, or of the one around it."""
        while path and path not in self.device:
            path = path.rpartition(".")[0]
        return self.device.get(path)

    @property
    def is_running(self) -> bool:
        """Whether the model is being called."""
        return bool(self._running)

    @property
    def running(self) -> torch.device | None:
        """The device of the module that is running; None if it has none."""
        return self.device.get(self._running[-1]) if self._running else None

    def _begin(self, usual: str) -> Callable[..., Any]:
        def begin(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
            if self._forward is not None and not self._running:
                self._forward.begin()
            caller = self._running[-1] if self._running else None
            path = path_of_call(module, usual, caller, self._shared)
            self._running.append(path)
            device = self.device.get(path)
            if device is None:
                return None
            args, kwargs = self.sent((args, kwargs), device)
            own = (getattr(module, name) for name in self._homes.get(path, ()))
            here = all(each.device == device for each in own)
            self.called[path] = self.called.get(path, True) and here
            return args, kwargs

        return begin

    def _end(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        if self._running:
            self._running.pop()
            if self._forward is not None and not self._running:
                self._forward.end()

    def sent(self, values: Any, device: torch.device) -> Any:
        """Return values with their tensors on a device, whatever holds them."""

        def one(tensor: torch.Tensor) -> torch.Tensor:
            return tensor if tensor.device == device else send(tensor, device)

        return tree_map_only(torch.Tensor, one, values)

    def __str__(self) -> str:
        right = sum(self.called.values())
        name = type(self.model).__name__
        devices = count(self._n_devices, "device")
        modules = count(len(self.called), "module")
        kept = "" if self._forward is None else f"; {self._forward}"
        return f"{name}: {right:,} of {modules} on their planned device, {devices}{kept}"


def _move(
    module: torch.nn.Module, name: str, parameter: torch.nn.Parameter, device: torch.device
) -> torch.nn.Parameter:
    """Move a parameter, which stays the same object wherever PyTorch allows it."""
    if parameter.device == device:
        return parameter
    data, gradient = parameter.data.to(device), parameter.grad
    if torch._has_compatible_shallow_copy_type(parameter, data):
        parameter.data = data
        if gradient is not None:
            gradient.data = gradient.data.to(device)
        return parameter
    made = module._parameters[name] = torch.nn.Parameter(data, parameter.requires_grad)
    return made


class _Meeting(TorchFunctionMode):
    """Lets tensors of several devices meet on one."""

    def __init__(self, placed: PlacedModules) -> None:
        super().__init__()
        self._placed = placed

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _ACROSS or not (self._placed.is_running or torch.is_grad_enabled()):
            return func(*args, **kwargs)
        tensors = [each for each in tree_leaves((args, kwargs)) if _counts(each)]
        if len({each.device for each in tensors}) > 1:
            changes = name in ("__setitem__", "__iadd__") or re.fullmatch(r"[a-z]\w*_", name)
            first = tensors[0].device
            device = first if changes else self._placed.running or first
            args, kwargs = self._placed.sent((args, kwargs), device)
        return func(*args, **kwargs)


_ACROSS = ("__set__", "backward", "copy_", "grad", "to", "type", "type_as")
"""Functions that take tensors of several devices as they are."""


def _counts(value: Any) -> bool:
    """Whether a value has to be where others are; a number of the host goes along."""
    return isinstance(value, torch.Tensor) and (value.dim() > 0 or value.device.type != "cpu")
