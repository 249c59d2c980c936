"""Several hosts: TensorFlow's own servers, started on this machine or joined where they run.

On each host of a cluster file with ``hosts``, ``enplace serve CLUSTER TASK`` starts the server of
one task. If the file has no addresses, all tasks run on this machine.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import NoReturn

import tensorflow as tf

from enplace.errors import EnplaceError
from enplace.files.folders import temporary_folder
from enplace.files.writing import write_atomically
from enplace.frameworks.tensorflow.devices import (
    Devices,
    DevicesError,
    job_and_number,
    short_name,
)
from enplace.frameworks.tensorflow.error_text import first_line
from enplace.frameworks.tensorflow.framework import FRAMEWORK
from enplace.frameworks.tensorflow.hosts.listening import (
    Address,
    accept_only,
    addresses_of,
    is_every,
    is_here,
    is_loopback,
)
from enplace.processes.wire import PROGRESS, Message
from enplace.processes.worker import GAVE_UP, Worker, error_of, sharing_scratch
from enplace.values.device_names import task_of
from enplace.writers.clusters import cluster_text

_CHATTER = re.compile(r"[IW]\d{4} |WARNING: All log messages")
"""Starts of lines that TensorFlow always logs."""

PATIENCE_S = 5.0
"""Longest time for a server to accept a connection."""

LOOK_S = 2.0
"""Time between two checks of the servers while a session runs."""


class HostsError(EnplaceError):
    """A server could not be started."""


@contextmanager
def serving(devices: Devices) -> Iterator[str]:
    """Find or start the servers for a session; those started here end with it.

    Yields
    ------
    str
        ``grpc://name:port`` of the first task; empty if all devices are in this process.

    Raises
    ------
    HostsError
        If a server ends before it is ready, or the cluster file has no address for a task.
    """
    if not devices.tasks:
        yield ""
    elif devices.cluster.hosts:
        addresses = _addresses(devices)
        for task, address in addresses.items():
            if not _answers(address):
                raise HostsError(
                    f"no server of {task} answers at {address}; start one there with: "
                    f"enplace serve {devices.text} {task}"
                )
        with _watched(addresses):
            yield f"grpc://{addresses[devices.tasks[0]]}"
    else:
        with _servers(devices) as address:
            yield f"grpc://{address}"


def _answers(address: str) -> bool:
    """Return whether a server listens at an address."""
    try:
        socket.create_connection(_host_and_port(address), PATIENCE_S).close()
    except OSError:
        return False
    return True


@contextmanager
def _watched(addresses: Mapping[str, str], servers: Sequence[Worker] = ()) -> Iterator[None]:
    """End this process if a server is gone, because a session would wait for it for ever."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            for server in servers:
                server.receive()  # or the server blocks once its log fills the pipe
            for task, address in addresses.items():
                if not (_answers(address) or _answers(address) or over.is_set()):
                    give_up(f"the server of {task} at {address} no longer answers")

    watcher = threading.Thread(target=look, name="servers", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def give_up(why: str) -> NoReturn:
    """End this process with a reason, which its parent passes on."""
    sys.stderr.write(f"\n{GAVE_UP}{why}\n")
    sys.stderr.flush()
    os._exit(1)


def _addresses(devices: Devices) -> dict[str, str]:
    hosts = dict(devices.cluster.hosts)
    for task, address in hosts.items():
        if is_every(host := _host_and_port(address)[0]):
            raise HostsError(
                f"{devices.text}: hosts: {task}: '{host}' is every address of a machine; write the "
                f"one by which the other hosts reach it"
            )
    if missing := [task for task in devices.tasks if task not in hosts]:
        raise HostsError(f"{devices.text}: hosts: no address for {missing[0]}; add it")
    return {task: hosts[task] for task in devices.tasks}


@contextmanager
def _servers(devices: Devices) -> Iterator[str]:
    """Start a server for each task on this machine; yield the address of the first."""
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(len(devices.tasks))]
    hosts = tuple(zip(devices.tasks, addresses, strict=True))
    with ExitStack() as stack:
        path = stack.enter_context(temporary_folder()) / "cluster.json"
        write_atomically(path, cluster_text(replace(devices.cluster, hosts=hosts)))
        started = []
        for task in devices.tasks:
            job = Message("serve", {"cluster": str(path), "task": task})
            assert FRAMEWORK.server is not None
            program = sharing_scratch(FRAMEWORK.server)
            started.append(stack.enter_context(Worker(program, [job])))
        for task, server in zip(devices.tasks, started, strict=True):
            _wait_until_ready(task, server)
        with _watched(dict(hosts), started):
            yield addresses[0]


def _wait_until_ready(task: str, server: Worker) -> None:
    while True:
        for message in server.receive(LOOK_S):
            if message.do == PROGRESS:
                return
            error = error_of(message)
            lines = getattr(error, "last_lines", "").splitlines()
            last = [line for line in lines if not _CHATTER.match(line)] or [str(error)]
            raise HostsError(f"the server of {task} did not start: {last[-1]}")


def _free_ports(count: int) -> list[int]:
    """Find free ports of this machine, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def start_server(devices: Devices, task: str) -> tf.distribute.Server:
    """Start the server of one task in this process; it ends with the process.

    It can be reached at its address in the cluster file only.

    Raises
    ------
    HostsError
        If the cluster has no such task, or an address is missing or in use.
    """
    if task not in devices.tasks:
        raise HostsError(f"{devices.text}: there is no {task}; choose {', '.join(devices.tasks)}")
    addresses = _addresses(devices)
    own, port = _own_addresses(addresses[task], [*addresses.values()])
    jobs: dict[str, dict[int, str]] = {}
    for name, address in addresses.items():
        job, number = job_and_number(name)
        jobs.setdefault(job, {})[number] = address
    job, number = job_and_number(task)
    config = deepcopy(devices.config)
    config.device_count["GPU"] = _count_gpus(devices, task)
    config.gpu_options.visible_device_list = gpus_of(devices, task)
    try:
        server = tf.distribute.Server(
            tf.train.ClusterSpec(jobs),
            job_name=job,
            task_index=number,
            config=config,
            start=False,  # it listens, and greets whoever connects, but runs nothing yet
        )
        accept_only(port, own)
        server.start()
    except tf.errors.OpError as error:
        why = first_line(error)
        raise HostsError(f"the server of {task} cannot start: {why}") from error
    except OSError as error:
        raise HostsError(f"the server cannot be kept to {own[0]}: {error}") from None
    return server


def gpus_of(devices: Devices, task: str) -> str:
    """Return the numbers of a task's GPUs: tasks of one host take turns in the cluster's order.

    Otherwise each would take all GPUs, and the first GPU of each would be the same card. Empty if
    the task is alone on its host, or the host has fewer GPUs than its tasks need.
    """
    hosts = dict(devices.cluster.hosts)
    host = _host_and_port(hosts[task])[0]
    here = [each for each in devices.tasks if _host_and_port(hosts[each])[0] == host]
    counts = [_count_gpus(devices, each) for each in here]
    there = len(tf.config.list_physical_devices("GPU"))
    if len(here) < 2 or sum(counts) > there:
        return ""
    first = sum(counts[: here.index(task)])
    return ",".join(map(str, range(first, first + _count_gpus(devices, task))))


def _count_gpus(devices: Devices, task: str) -> int:
    return sum(task_of(name) == task and ":GPU:" in name.upper() for name in devices.names)


def _own_addresses(address: str, all_addresses: Sequence[str]) -> tuple[list[Address], int]:
    """Return what an address of the cluster file stands for here, if others can reach it."""
    host, port = _host_and_port(address)
    try:
        own, is_ours = addresses_of(host), is_here(host)
        is_alone = is_loopback(own) and not all(
            is_loopback(addresses_of(_host_and_port(each)[0])) for each in all_addresses
        )
    except OSError as error:
        raise HostsError(f"the server cannot be kept to {address}: {error}") from None
    fix = "write this machine's own address in the cluster file"
    if not is_ours:
        raise HostsError(f"'{host}' is {own[0]}, which is no address of this machine; {fix}")
    if is_alone:
        raise HostsError(
            f"'{host}' is {own[0]} on this machine, where no other host can reach the server; {fix}"
        )
    return own, port


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def check_devices(target: str, devices: Devices, used: Sequence[str]) -> None:
    """Refuse devices that neither this machine nor the servers have.

    Raises
    ------
    DevicesError
        With the first missing device, and those that exist.
    """
    with tf.compat.v1.Session(target, tf.Graph(), devices.config) as session:
        there = {short_name(device.name) for device in session.list_devices()}
    if missing := [device for device in used if device not in there]:
        raise DevicesError(
            f"{missing[0]} does not exist here ({', '.join(sorted(there))} do); "
            f"choose other devices, or place the model for these"
        )
