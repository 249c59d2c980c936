"""A process that ``torchrun`` started finds its stage's device, and joins the other stages.

The processes of a host take its devices of the plan in turn. Their ranks are numbers of stages: so
each card does the part that is planned for it, in whatever order ``torchrun`` counts the hosts.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import torch
import torch.distributed as dist

from enplace.errors import ClusterError, EnplaceError, PlanError
from enplace.frameworks.torch.error_text import first_line
from enplace.frameworks.torch.hosts import (
    devices_of,
    stage_devices,
    start_lines,
    tasks_of,
)
from enplace.text import count, listed
from enplace.values.cluster import Cluster
from enplace.values.device_names import device_label
from enplace.values.plan import Plan
from enplace.values.problem import Problem


@dataclass(frozen=True)
class Member:
    """A process among those of a pipeline.

    Attributes
    ----------
    rank : int
        The number of its first stage.
    order : list of int
        The plan's device of each process.
    device : torch.device
        Where this one computes.
    is_bound : bool
        Whether its device is a card or on one of several hosts, so that no other will do.
    """

    rank: int
    order: list[int]
    device: torch.device
    is_bound: bool


def join(problem: Problem, plan: Plan, agreed: bytes) -> Member:
    """Find the stage of this process, and join the others, with their random numbers.

    Parameters
    ----------
    agreed : bytes
        What all processes must have alike: the plan, and how it is to run.

    Raises
    ------
    EnplaceError
        If these are not the processes that the plan needs, or they have other plans.
    """
    member = _find_place(problem.cluster, stage_devices(problem, plan))
    if member.device.type == "cuda":
        torch.cuda.set_device(member.device)
    if dist.is_initialized():
        if dist.get_rank() != member.rank:
            raise EnplaceError("call enplace.apply before the script starts torch.distributed")
    else:
        _meet(member)
    own = hashlib.sha256(agreed).hexdigest()
    digests: list[str] = [""] * len(member.order)
    dist.all_gather_object(digests, own)
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise PlanError(
            f"stage {others[0]} has another plan or number of micro-batches than stage 0; give all "
            f"processes the same"
        )
    _share_random_numbers()
    return member


def _find_place(cluster: Cluster, devices: list[int]) -> Member:
    """Find which of the plan's devices this process has.

    Raises
    ------
    EnplaceError
        If ``torchrun`` did not start a process for each.
    """
    script = os.path.basename(sys.argv[0])
    lines = "; ".join(start_lines(cluster, devices, script))
    names = listed([cluster.devices[device].label for device in devices])
    needs = f"the plan has stages on {count(len(devices), 'device')} ({names})"
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise EnplaceError(f"{needs}, and each needs a process; start the script by: {lines}")
    world = int(os.environ["WORLD_SIZE"])
    local, of_host = (
        int(os.environ.get(name, other))
        for name, other in (("LOCAL_RANK", os.environ["RANK"]), ("LOCAL_WORLD_SIZE", world))
    )
    if world != len(devices):
        line = f"{needs}, and there are {world} processes; start the script by: {lines}"
        raise ClusterError("" if local else line)  # one on each host tells it
    tasks = tasks_of(cluster, devices)
    on_cards = any(cluster.devices[device].kind == "gpu" for device in devices)
    on_cards = on_cards and torch.cuda.is_available()
    is_bound = on_cards or len(tasks) > 1
    if not is_bound:
        return Member(int(os.environ["RANK"]), devices, torch.device("cpu"), is_bound)
    own = devices_of(cluster, devices, tasks[_number_of_host(cluster, tasks)])
    if of_host != len(own):
        raise ClusterError(
            f"{needs}, {len(own)} of them on this host, where {count(of_host, 'process')} of "
            f"{world} run; start the script by: {lines}"
        )
    name, kind = cluster.devices[own[local]].name, cluster.devices[own[local]].kind
    card = int(name.rpartition(":")[2]) if kind == "gpu" and on_cards else None
    if card is not None and card >= torch.cuda.device_count():
        there = count(torch.cuda.device_count(), "GPU")
        raise ClusterError(
            f"the plan has a stage on {device_label(name)}, and PyTorch sees {there}"
        )
    device = torch.device("cpu") if card is None else torch.device("cuda", card)
    return Member(devices.index(own[local]), devices, device, is_bound)


def _number_of_host(cluster: Cluster, tasks: list[str]) -> int:
    """Return which of the hosts this is: the one with an address of this machine.

    If several have one, or none has, ``torchrun`` decides; it may number hosts as they arrive.
    """
    addresses = dict(cluster.hosts)
    own = [addresses.get(task, "").rpartition(":")[0].strip("[]") for task in tasks]
    here = [number for number, address in enumerate(own) if _is_here(address)]
    if len(here) != 1:
        return min(int(os.environ.get("GROUP_RANK", 0)), len(tasks) - 1)
    if name := _interface_with(own[here[0]]):  # a name of the host may lead to another one
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
    return here[0]


def _is_here(address: str) -> bool:
    try:
        with socket.create_server((address, 0)):
            return bool(address)
    except OSError:
        return False


def _interface_with(address: str) -> str:
    """Return the network interface that has an address; empty if the system does not say."""
    try:
        ioctl = importlib.import_module("fcntl").ioctl
    except ImportError:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                found = ioctl(asking, _ADDRESS, struct.pack("256s", name.encode()))
            except OSError:
                continue  # it has none
            if socket.inet_ntoa(found[20:24]) == socket.gethostbyname(address):
                return name
    return ""


_ADDRESS = 0x8915
"""Asks Linux for the address of an interface."""


def _meet(member: Member) -> None:
    backend = "nccl" if member.device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, rank=member.rank, world_size=len(member.order))
    except (RuntimeError, ValueError) as error:
        at = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise EnplaceError(
            f"this process cannot join the others at {at} ({first_line(error)}); if another "
            f"program has that port, start torchrun with another --master-port"
        ) from None
    os.environ["RANK"] = str(member.rank)


def _share_random_numbers() -> None:
    """Give all processes the first one's random numbers: so their weights and batches are alike."""
    own = [torch.get_rng_state(), random.getstate(), np.random.get_state()]  # noqa: NPY002
    dist.broadcast_object_list(own, src=0)
    torch.set_rng_state(own[0])
    random.setstate(own[1])
    np.random.set_state(own[2])  # noqa: NPY002


LOOK_S = 0.5
"""Time between two looks at whether ``torchrun`` still runs."""


def end_with_torchrun() -> None:
    """End this process once ``torchrun`` has, which starts each in a separate session."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # else the parent may end before its processes do
        threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)


class LostError(EnplaceError):
    """Another process of the pipeline has ended."""


_LOST = ("Connection", "connection", "onnected", "peer", "ocket", "NCCL", "remote process")
"""What PyTorch says then."""


_TOLD = "enplace: a process has told why it ends"


def tell_others() -> None:
    """Tell the other processes that this one has ended by an error, and has said so."""
    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.distributed_c10d._get_default_store().set(_TOLD, "")


def tell_once() -> None:
    """Let one process tell a line that ends several."""
    usual = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, EnplaceError) or _is_first(str(error)):
            usual(kind, error, trace)

    sys.excepthook = told


def _is_first(line: str) -> bool:
    """Whether no other process has told a line, as far as is known."""
    if dist.is_initialized():
        with suppress(RuntimeError):  # the store may have ended
            own, store = str(dist.get_rank()), dist.distributed_c10d._get_default_store()
            return bool(store.compare_set(line, "", own) == own.encode())
    return True


@contextmanager
def connected() -> Iterator[None]:
    """Say in a line that another process has ended.

    Raises
    ------
    LostError
        If it has, and so a message within the block fails; without text if it has said why.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, EnplaceError) or not any(m in str(error) for m in _LOST):
            raise
        line = (
            f"another process of the pipeline has ended; its own last line says why "
            f"({first_line(error):.80})"
        )
        with suppress(RuntimeError):  # its store may have ended with it
            if dist.distributed_c10d._get_default_store().check([_TOLD]):
                line = ""
        raise LostError(line) from None
