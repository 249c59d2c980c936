"""Which process of a pipeline has which weights, and what the processes do with them together.

Only the process of a stage makes the gradients of its parameters and updates them. Norms and
overflows of gradients are those of all stages. Where the script evaluates or saves its model, all
processes get the weights of all stages.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from enplace.frameworks.torch.pipelines.calls import PipelineRefusedError
from enplace.frameworks.torch.pipelines.joining import Member, connected
from enplace.frameworks.torch.pipelines.meeting import READS, SAVES, meet
from enplace.frameworks.torch.pipelines.own_states import OwnStates
from enplace.frameworks.torch.pipelines.stages import Cut, StageModule, kept_by, parameters_of
from enplace.frameworks.torch.pipelines.watched import Elsewhere, Watch


class Weights:
    """The weights of a model, each of which the process of its stage updates.

    Attributes
    ----------
    own : dict of int to Parameter
        By ``id``, those that this process updates.
    watch : Watch
        Sees where the script reads and writes them.

    Parameters
    ----------
    is_in_step : callable
        Whether the script has called its model, and not gone backward yet.
    """

    def __init__(self, member: Member, is_in_step: Callable[[], bool]) -> None:
        self._member = member
        self._model: torch.nn.Module | None = None
        self._thread = threading.current_thread()
        self._name_of: Mapping[int, str] = {}
        self.own: dict[int, torch.nn.Parameter] = {}
        self.watch = Watch(self.refresh, self._wrote, is_in_step, self._is_elsewhere)
        self._outdated: set[int] = set()
        self._shared: dict[int, tuple[torch.nn.Parameter, tuple[int, ...]]] = {}
        self._groups: dict[tuple[int, ...], Any] = {}
        self._owner: dict[int, int] = {}
        self._beside: dict[int, torch.nn.Parameter] = {}

    @property
    def named(self) -> dict[str, torch.nn.Parameter]:
        """Those of the model that this process updates, by their names in it."""
        return {self._name_of[key]: p for key, p in self.own.items() if key in self._name_of}

    def begin(self, model: torch.nn.Module) -> None:
        """Take the weights of the first process for a model."""
        self._name_of = {id(each): name for name, each in model.named_parameters()}
        self._model, self._thread = model, threading.current_thread()
        self.watch.follow(model.parameters())
        self._outdated.update(map(id, self._all))
        self.refresh()

    def divide(self, cut: Cut, modules: Sequence[StageModule]) -> None:
        """Note which process has which parameters; the same for batches of all shapes.

        Parameters
        ----------
        modules : sequence of StageModule
            The stages of this process.

        Raises
        ------
        PipelineRefusedError
            If batches of another shape need another division.
        """
        owner: dict[int, int] = {}
        for calls, rank in zip(cut.calls, cut.rank, strict=True):
            for call in calls:
                for tensor in kept_by(call):
                    owner.setdefault(id(tensor), rank)
        if any(self._owner.get(key, rank) != rank for key, rank in owner.items()):
            raise PipelineRefusedError(
                "a batch of another shape takes the model's modules in another order; give all "
                "batches one shape"
            )
        self._owner = {**owner, **self._owner}
        beside = {
            id(p): p
            for calls in cut.calls
            for p in chain.from_iterable(map(parameters_of, calls))
            if p.requires_grad and id(p) not in self._name_of and id(p) not in self._beside
        }
        self._beside |= beside
        if beside:
            self.watch.follow(beside.values())
        self.own.update({id(each): each for module in modules for each in module.own})
        for parameter, ranks in cut.shared:
            self._shared[id(parameter)] = parameter, ranks
            if ranks not in self._groups:
                self._groups[ranks] = dist.new_group([*ranks])  # all processes make all groups

    def patches(self) -> list[tuple[Any, str, Callable[..., Any]]]:
        """Return the functions of PyTorch to replace: owner, name, and what makes the new one."""
        clip = sys.modules["torch.nn.utils.clip_grad"]
        places = (clip, torch.nn.utils, sys.modules["__main__"])  # a script may have it by then
        norms = [
            (place, name, self._took_norm)
            for place in places
            for name, each in vars(place).items()
            if each is clip._get_total_norm
        ]
        kinds = [each for each in vars(torch.optim).values() if isinstance(each, type)]
        return [
            *norms,
            (torch.amp.GradScaler, "_unscale_grads_", self._unscaled),
            (torch.nn.Module, "state_dict", self._saved),
            (torch.optim.Optimizer, "state_dict", self._saved_states),
            *((kind, "step", self._took_step) for kind in kinds if "step" in vars(kind)),
        ]

    # Gradients

    def lay_aside(self) -> dict[int, torch.Tensor]:
        """Take away the gradients so far of parameters that several stages read."""
        found = {}
        for key, (parameter, _) in self._shared.items():
            if parameter.grad is not None:
                found[key], parameter.grad = parameter.grad, None
        return found

    def exchange(self, before: Mapping[int, torch.Tensor]) -> None:
        """Add up the gradients of parameters that several stages read, and those before."""
        for key, (parameter, ranks) in self._shared.items():
            if self._member.rank not in ranks or not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=self._groups[ranks])
            if key in before:
                parameter.grad = before[key].add_(parameter.grad)

    def _is_elsewhere(self, parameter: torch.Tensor) -> bool:
        """Whether only other processes have the gradient of a parameter now."""
        key = id(parameter)
        return (
            parameter.requires_grad
            and key in self._owner
            and key not in self.own
            and any(each.grad is not None for each in self.own.values())
        )

    def _took_norm(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
            """Take the norm of the gradients of all stages; a shared one counts once."""
            if not self._owner:
                return usual(tensors, norm_type, *args, **kwargs)
            elsewhere = {
                id(p.grad) for p, ranks in self._shared.values() if ranks[0] != self._member.rank
            }
            given = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
            mine = [
                each
                for each in given
                if id(each) not in elsewhere and not isinstance(each, Elsewhere)
            ]
            own = usual(mine, norm_type, *args, **kwargs).to(self._member.device)
            with connected():
                if norm_type == float("inf"):
                    dist.all_reduce(own, op=dist.ReduceOp.MAX)
                    return own
                total = own**norm_type
                dist.all_reduce(total)
                return total ** (1 / norm_type)

        return total_norm

    def _unscaled(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        device = self._member.device

        @wraps(usual)
        def unscale(*args: Any, **kwargs: Any) -> Any:
            """Let all stages skip a step in which the gradients of one are infinite."""
            found = usual(*args, **kwargs)
            worst = torch.stack([torch.zeros((), device=device), *found.values()]).max()
            with connected():
                dist.all_reduce(worst, op=dist.ReduceOp.MAX)
            return {device: worst}

        return unscale

    def _took_step(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        if hasattr(usual, "hooked"):  # for an optimiser that is older; its hooks are the script's
            hook: Any = torch.optim.Optimizer.profile_hook_step
            hooked: Callable[..., Any] = hook(self._took_step(vars(usual)["__wrapped__"]))
            vars(hooked)["hooked"] = True
            return hooked

        @wraps(usual)
        def step(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            """Update own parameters, also for an optimiser that looks at all before or after."""
            if not self.watch.is_on:
                return usual(optimizer, *args, **kwargs)
            given = [p for group in optimizer.param_groups for p in group["params"]]
            one = next((p for p in given if id(p) in self.own and p.grad is not None), None)
            before = {key: _version(each) for key, each in optimizer.state.get(one, {}).items()}
            with self.watch.off():
                out = usual(optimizer, *args, **kwargs)
            self._outdated.update(map(id, given))
            for key, each in optimizer.state.get(one, {}).items():
                if before.get(key) != _version(each):
                    for p in filter(self._is_elsewhere, given):
                        optimizer.state[p][key] = self._like(each, one, p)
            return out

        return step

    def _like(self, state: Any, one: torch.Tensor | None, other: torch.Tensor) -> Any:
        """Return what an optimiser keeps of one parameter, without values, for another."""
        if not isinstance(state, torch.Tensor):
            return state
        shape = other.shape if one is not None and state.shape == one.shape else state.shape
        return self.watch.stand_in(state, shape)

    # What is saved or evaluated

    @property
    def _all(self) -> list[torch.Tensor]:
        """All parameters and buffers of the model, and parameters beside it, as of a loss."""
        if self._model is None:
            return []
        return [*self._model.parameters(), *self._model.buffers(), *self._beside.values()]

    def updated(self, optimizer: torch.optim.Optimizer, *, keeps_all: bool) -> None:
        """Note that each process has updated its own, if an optimiser has any of these.

        It ``keeps_all`` states if it sees all parameters: stand-ins for those of others.
        """
        given = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if given.isdisjoint(self._owner):
            return
        self._outdated.update(map(id, self._all))
        if not isinstance(optimizer.state, OwnStates):  # as at first, and where it was loaded
            elsewhere = {} if keeps_all else self._owner.keys() - self.own.keys()
            own = ((p, each) for p, each in optimizer.state.items() if id(p) not in elsewhere)
            optimizer.state = OwnStates(None, own)
        optimizer.state.turn(shown=False)

    def _wrote(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note that the script has written some, perhaps only where it has their gradients."""
        self._outdated.update(map(id, parameters))

    def refresh(self) -> None:
        """Give all processes the weights of all stages, if some were written since."""
        if not self._outdated:
            return
        if threading.current_thread() is not self._thread:
            raise PipelineRefusedError(
                "a thread of the script reads weights while the others go on; copy them first, in "
                "the main thread of each process, as in {k: v.clone() for k, v in "
                "model.state_dict().items()}"
            )
        meet(READS, self._member.device)
        with self.watch.off(), connected():
            flags = [id(tensor) in self._outdated for tensor in self._all]
            outdated = torch.tensor(flags, dtype=torch.uint8, device=self._member.device)
            dist.all_reduce(outdated, op=dist.ReduceOp.MAX)
            self._outdated.clear()
            for tensor, is_outdated in zip(self._all, outdated.tolist(), strict=True):
                if is_outdated:
                    dist.broadcast(tensor.detach(), self._owner.get(id(tensor), 0))

    def _saved(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def state_dict(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._outdated and any(id(p) in self._owner for p in module.parameters()):
                self.refresh()
            return usual(module, *args, **kwargs)

        return state_dict

    def _saved_states(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def state_dict(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            """Return the states of all stages."""
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            if not any(id(p) in self._owner for p in parameters):
                return usual(optimizer, *args, **kwargs)
            own = {
                number: optimizer.state[p]
                for number, p in enumerate(parameters)
                if self._owner.get(id(p)) == self._member.rank and p in optimizer.state
            }
            found: list[Mapping[int, Any]] = [{} for _ in self._member.order]
            meet(SAVES, self._member.device)
            with connected():
                dist.all_gather_object(found, own)
            before = dict(optimizer.state)
            theirs = {number: state for each in found for number, state in each.items()}
            optimizer.state.clear()
            optimizer.state.update({parameters[n]: theirs[n] for n in sorted(theirs)})
            optimizer.state.update({p: s for p, s in before.items() if p not in optimizer.state})
            try:
                return usual(optimizer, *args, **kwargs)
            finally:
                optimizer.state.clear()
                optimizer.state.update(before)

        return state_dict


def _version(state: Any) -> Any:
    """Return what changes when an optimiser makes or changes what it keeps."""
    return (id(state), state._version) if isinstance(state, torch.Tensor) else state
