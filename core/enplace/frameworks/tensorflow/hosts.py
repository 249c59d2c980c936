"""Several hosts: TensorFlow's own servers, started on this machine or joined where they listen.

On each host of a cluster file with ``hosts``, ``python -m enplace.frameworks.tensorflow.hosts
CLUSTER TASK`` starts the server of one task. A cluster file without addresses has all of its tasks
on this machine.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click
import tensorflow as tf

from enplace.disk import write_atomically
from enplace.errors import EnplaceError
from enplace.frameworks.tensorflow.devices import Devices, DevicesError, parse_devices, short_name
from enplace.frameworks.tensorflow.said import what_it_says
from enplace.frameworks.worker import GAVE_UP_SAYING
from enplace.writers.clusters import cluster_text

_READY = "serving"

_CHATTER = re.compile(r"[IW]\d{4} |WARNING: All log messages")
"""Lines that TensorFlow logs whatever happens."""

PATIENCE_S = 5.0
"""Time for a server to take a connection."""

LOOK_S = 2.0
"""Time between two looks at the servers while a session runs."""


class HostsError(EnplaceError):
    """A server could not be started."""


@contextmanager
def serving(devices: Devices) -> Iterator[str]:
    """What a session has to connect to; servers that were started for it end with it.

    Yields
    ------
    str
        ``grpc://name:port`` of the first task, or nothing if all devices are in this process.

    Raises
    ------
    HostsError
        If a server ends before it serves, or the cluster file lacks the address of a task.
    """
    if not devices.tasks:
        yield ""
    elif devices.cluster.hosts:
        addresses = _addresses(devices)
        for task, address in zip(devices.tasks, addresses, strict=True):
            if not _answers(address):
                raise HostsError(
                    f"no server of {task} answers at {address}; start it there with: "
                    f"python -m enplace.frameworks.tensorflow.hosts {devices.text} {task}"
                )
        with _watched(dict(zip(devices.tasks, addresses, strict=True))):
            yield f"grpc://{addresses[0]}"
    else:
        with _servers(devices) as address:
            yield f"grpc://{address}"


def _answers(address: str) -> bool:
    """Whether anybody listens at an address."""
    name, _, port = address.rpartition(":")
    try:
        socket.create_connection((name.strip("[]"), int(port)), PATIENCE_S).close()
    except OSError:
        return False
    return True


@contextmanager
def _watched(servers: Mapping[str, str]) -> Iterator[None]:
    """End this process if a server is gone: a session would wait for it for ever."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            for task, address in servers.items():
                if not (_answers(address) or _answers(address) or over.is_set()):
                    give_up(f"the server of {task} at {address} does not answer any more")

    threading.Thread(target=look, name="servers", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def give_up(why: str) -> NoReturn:
    """End this process with a reason that whoever started it passes on."""
    sys.stderr.write(f"\n{GAVE_UP_SAYING}{why}\n")
    sys.stderr.flush()
    os._exit(1)


def _addresses(devices: Devices) -> list[str]:
    hosts = dict(devices.cluster.hosts)
    if lacking := [task for task in devices.tasks if task not in hosts]:
        raise HostsError(f"{devices.text}: hosts: no address for {lacking[0]}; add it")
    return [hosts[task] for task in devices.tasks]


@contextmanager
def _servers(devices: Devices) -> Iterator[str]:
    """A server for each task on this machine; the address of the first."""
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(len(devices.tasks))]
    hosts = tuple(zip(devices.tasks, addresses, strict=True))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = folder / "cluster.json"
        write_atomically(path, cluster_text(replace(devices.cluster, hosts=hosts)))
        started = [
            stack.enter_context(_server(path, task, folder / f"{number}.log"))
            for number, task in enumerate(devices.tasks)
        ]
        for task, (server, log) in zip(devices.tasks, started, strict=True):
            _wait_for(task, server, log)
        with _watched(dict(hosts)):
            yield addresses[0]


@contextmanager
def _server(cluster: Path, task: str, log: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    command = [
        sys.executable,
        "-m",
        "enplace.frameworks.tensorflow.hosts",
        str(cluster),
        task,
        "--with-parent",
    ]
    with log.open("w", encoding="utf-8") as errors:
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    with server:  # closes the pipes and waits
        try:
            yield server, log
        finally:
            server.kill()


def _wait_for(task: str, server: subprocess.Popen[str], log: Path) -> None:
    assert server.stdout is not None
    if _READY not in server.stdout.readline():
        said = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        last = [line for line in said if not _CHATTER.match(line)] or ["no reason given"]
        raise HostsError(f"the server of {task} did not start: {last[-1]}")


def _free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def start_server(devices: Devices, task: str) -> tf.distribute.Server:
    """Start the server of one task, in this process; it ends with the process.

    Raises
    ------
    HostsError
        If the cluster has no such task, or an address is missing or in use.
    """
    if task not in devices.tasks:
        raise HostsError(f"{devices.text}: there is no {task}; use {', '.join(devices.tasks)}")
    jobs: dict[str, dict[int, str]] = {}
    for name, address in zip(devices.tasks, _addresses(devices), strict=True):
        job, number = _job_and_number(name)
        jobs.setdefault(job, {})[number] = address
    job, number = _job_and_number(task)
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(jobs), job_name=job, task_index=number, config=devices.config
        )
    except tf.errors.OpError as error:
        why = what_it_says(error)
        raise HostsError(f"the server of {task} does not start: {why}") from error


def _job_and_number(task: str) -> tuple[str, int]:
    _, job, number = task.split("/")
    return job.removeprefix("job:"), int(number.removeprefix("task:"))


@click.command()
@click.argument("cluster")
@click.argument("task")
@click.option("--with-parent", is_flag=True, help="End when the standard input ends.")
def main(cluster: str, task: str, with_parent: bool) -> None:
    """Serve TASK, such as /job:worker/task:0, of the cluster file CLUSTER, until stopped."""
    try:
        server = start_server(parse_devices(cluster), task)
    except EnplaceError as error:
        raise click.ClickException(str(error)) from None
    print(_READY, task, flush=True)
    if with_parent:
        sys.stdin.read()
    else:
        server.join()


def check_devices(target: str, devices: Devices, used: Sequence[str]) -> None:
    """Refuse devices that the servers, or this machine, do not have.

    Raises
    ------
    DevicesError
        Names one that is missing, and those that there are.
    """
    with tf.compat.v1.Session(target, tf.Graph(), devices.config) as session:
        there = {short_name(device.name) for device in session.list_devices()}
    if lacking := [device for device in used if device not in there]:
        raise DevicesError(
            f"{lacking[0]} is not here ({', '.join(sorted(there))} are); "
            f"choose other devices, or place the model for these"
        )


if __name__ == "__main__":
    main()
