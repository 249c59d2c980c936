"""The devices, of this machine or of a cluster's hosts, on which a step is measured and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.python.eager import context

from enplace.errors import EnplaceError
from enplace.frameworks.devices import LOCAL
from enplace.frameworks.nvml import Card, matched, visible_cards
from enplace.frameworks.tensorflow.device_names import device_names
from enplace.frameworks.tensorflow.step import plain_config
from enplace.readers.clusters import read_cluster
from enplace.readers.gpu_profile import GPU_TO_GPU, GPU_TO_HOST, HOST_TO_GPU
from enplace.system import count_cores, host_bytes
from enplace.text import read_size
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.device_names import task_of

CPU_TO_CPU = (5.0, 1e-4)
"""A preset: nothing is copied between logical CPUs, so nothing can be measured."""

MAX_CPUS = 64


_GPU_SHARE = 0.85
"""Usable share of a GPU's memory; the context and the libraries' workspace take the rest."""


class DevicesError(EnplaceError):
    """The devices that were asked for are not there."""


@dataclass(frozen=True, eq=False)
class Devices:
    """The devices that a step runs on.

    Attributes
    ----------
    text : str
        As the user gave it: ``cpu:2``, ``gpu:all``, or a cluster file with hosts.
    cluster : Cluster
        With preset links until they are measured.
    config : ConfigProto
        For a session with these devices, graphs not rewritten, one thread for each device. Beside
        GPUs, an op of the host may use all cores.
    models : tuple of str
        The model of each GPU of this machine, empty for a CPU; empty if there is no GPU.
    """

    text: str
    cluster: Cluster
    config: ConfigProto
    models: tuple[str, ...] = ()

    @cached_property
    def names(self) -> list[str]:
        """TensorFlow's name of each device."""
        return device_names(self.cluster)

    @property
    def tasks(self) -> list[str]:
        """``/job:worker/task:0`` and so on; empty if all devices are in this process."""
        return sorted({task for name in self.names if (task := task_of(name))}, key=job_and_number)

    @property
    def host(self) -> str:
        """The device where batches are fed."""
        return f"{next(iter(self.tasks), '')}/device:CPU:0"


def short_name(device: str, own_task: str = "") -> str:
    """Return a device's name without replica and, in this process, without job and task.

    ``/job:localhost/replica:0/task:0/device:CPU:1`` is ``/device:CPU:1``.

    Parameters
    ----------
    own_task : str
        What else this process is called; see :func:`eager_task`.
    """
    name = device.replace("/replica:0", "").removeprefix("/job:localhost/task:0")
    return name.removeprefix(own_task) if name.startswith(f"{own_task}/") else name


def eager_task() -> str:
    """Return this process's task, such as ``/job:worker/task:0``, where TensorFlow runs eagerly.

    A script gives it one with ``TF_CONFIG`` and a strategy for several workers. Without one it is
    empty, as it is in a session.
    """
    running = context.context()
    server = running.get_server_def() or running._collective_ops_server_def
    return f"/job:{server.job_name}/task:{server.task_index}" if server else ""


def job_and_number(task: str) -> tuple[str, int]:
    """Return the parts of a task's name: ``/job:worker/task:0`` is number 0 of ``worker``."""
    spec = tf.DeviceSpec.from_string(task)
    return spec.job, spec.task


def parse_devices(text: str) -> Devices:
    """Find the devices that a text names, without starting any.

    Parameters
    ----------
    text : str
        ``cpu:2`` for two logical CPUs, ``gpu:all``, ``gpu:2`` (logical ones if the machine has
        fewer), or the file of a cluster with devices like ``/job:worker/task:0/...``.

    Raises
    ------
    DevicesError
        If there are none.
    FileError, ClusterError
        If the file cannot be used.
    """
    match = LOCAL.fullmatch(text.strip())
    if match is None:
        return _hosts(text)
    kind, number = match[1].lower(), match[2].lower()
    if kind == "gpu":
        return _gpus(text, number, read_size(match[3] or ""))
    if match[3] or number.startswith("#"):
        raise DevicesError(f"'{text}': only GPUs can be chosen one by one or be given less memory")
    return _cpus(text, count_cores() if number == "all" else int(number))


def _cpus(text: str, count: int) -> Devices:
    """Make logical CPUs: a thread for each or, on a machine with fewer cores, one for all."""
    if not 1 <= count <= MAX_CPUS:
        raise DevicesError(f"'{text}': use 1 to {MAX_CPUS} logical CPUs")
    shared = count > count_cores()
    chip = "CPU" if shared else ""
    devices = [Device(f"CPU:{i}", "cpu", host_bytes() // count, chip=chip) for i in range(count)]
    cluster = _with_preset_links(
        devices, "Logical CPUs of this machine (emulated). Transfers between them cost a preset."
    )
    return Devices(text, cluster, _config({"CPU": count}, 1 if shared else count))


def _gpus(text: str, which: str, most_bytes: int) -> Devices:
    """Take the GPUs and the host; the GPUs are logical if the machine has fewer.

    Parameters
    ----------
    which : str
        How many, or after ``#`` their numbers; only those are visible then.
    most_bytes : int
        The most memory that each may use; 0 for no limit.
    """
    gpus = tf.config.list_physical_devices("GPU")
    physical = len(gpus)
    chosen = which[1:].split(",") if which.startswith("#") else []
    if physical < len(chosen):
        raise DevicesError(
            f"'{text}': of these GPUs, TensorFlow finds {physical} here; 'nvidia-smi -L' lists them"
        )
    count = len(chosen) or (physical if which == "all" else int(which))
    if not physical or not count:
        raise DevicesError(
            f"'{text}': TensorFlow finds no GPU here; check its driver, or use cpu:2"
        )
    used = min(count, physical)
    share, more = divmod(count, used)
    parts = [share + (gpu < more) for gpu in range(used)]
    cards = _cards_of(gpus)
    free_bytes = [card.free_bytes for card in cards] or [gpu_bytes()] * physical
    config = _config({"CPU": 1}, count + 1)
    config.intra_op_parallelism_threads = 0  # an op of the host has TensorFlow's own threads
    config.gpu_options.visible_device_list = ",".join(map(str, range(used)))
    devices: list[Device] = []
    card_of: list[int] = []
    for gpu, n_parts in enumerate(parts):
        chip, part = f"GPU {gpu}" * (n_parts > 1), int(free_bytes[gpu] * _GPU_SHARE) // n_parts
        part = min(part, most_bytes or part)
        card_of += [gpu] * n_parts
        limits = config.gpu_options.experimental.virtual_devices.add()
        limits.memory_limit_mb.extend([part >> 20] * n_parts)
        devices += [
            Device(f"GPU:{len(devices) + i}", "gpu", part, chip=chip) for i in range(n_parts)
        ]
    devices.append(Device("CPU:0", "cpu", host_bytes(), lanes=count + 1))
    names = f" ({', '.join(card.name for card in cards[:used])})" if cards else ""
    described = f"The GPUs of this machine{names} and its host."
    cluster = _with_preset_links(devices, described)
    models = [*(_model_name(gpus[gpu]) for gpu in card_of), ""]
    return Devices(text, _without_nvlink(cluster, card_of, cards), config, tuple(models))


def _cards_of(gpus: Sequence[Any]) -> list[Card]:
    """Return what NVML knows of TensorFlow's GPUs, in their order; empty if that is unknown."""
    cards = visible_cards()
    return matched(cards, [_model_name(gpu) for gpu in gpus]) if cards else []


def _model_name(gpu: Any) -> str:
    """Return the model of a GPU, without starting it."""
    return str(tf.config.experimental.get_device_details(gpu).get("device_name", ""))


def _without_nvlink(cluster: Cluster, card_of: Sequence[int], cards: Sequence[Card]) -> Cluster:
    """Give two cards that no NVLink joins the costs of a copy over the bus, until measured."""

    def cost(link: Link) -> Link:
        if not cards or max(link.source, link.target) >= len(card_of):
            return link
        a, b = cards[card_of[link.source]], cards[card_of[link.target]]
        if a is b or b.uuid in a.nvlinks:
            return link
        b0_us, b1_us_per_byte = GPU_TO_HOST
        return replace(link, b0_us=b0_us, b1_us_per_byte=b1_us_per_byte)

    return replace(cluster, links=tuple(map(cost, cluster.links)))


def _hosts(path: str) -> Devices:
    if not os.path.exists(path):
        raise DevicesError(
            f"'{path}' is neither cpu:N, gpu:N, gpu:all nor a cluster file; choose one of them"
        )
    cluster = read_cluster(path)
    names = device_names(cluster)
    if not all(map(task_of, names)):
        raise DevicesError(
            f"{path}: devices of several hosts have names like /job:worker/task:0/device:CPU:0; "
            f"rename '{cluster.devices[0].name}', or use cpu:N or gpu:N for this machine"
        )
    cpus = max((_index(name) + 1 for name in names if ":CPU:" in name), default=1)
    config = _config({"CPU": cpus}, cluster.n_devices)
    config.use_per_session_threads = False  # all sessions of a server share its threads
    return Devices(path, cluster, config)


def _index(device: str) -> int:
    return int(device.rpartition(":")[2])


def _config(count: dict[str, int], threads: int) -> ConfigProto:
    config = plain_config(count)
    config.intra_op_parallelism_threads = 1
    config.inter_op_parallelism_threads = threads
    config.use_per_session_threads = True
    return config


def _with_preset_links(devices: list[Device], description: str) -> Cluster:
    """Join every pair by a channel of its own with preset costs."""
    costs = {
        ("cpu", "cpu"): CPU_TO_CPU,
        ("cpu", "gpu"): HOST_TO_GPU,
        ("gpu", "cpu"): GPU_TO_HOST,
        ("gpu", "gpu"): GPU_TO_GPU,
    }
    pairs = list(permutations(range(len(devices)), 2))
    links = [
        Link(a, b, *costs[devices[a].kind, devices[b].kind], (channel,))
        for channel, (a, b) in enumerate(pairs)
    ]
    channels = tuple(f"{devices[a].name}->{devices[b].name}" for a, b in pairs)
    return Cluster("local", tuple(devices), channels, tuple(links), description)


def gpu_bytes() -> int:
    """Return the memory of the smallest GPU, without starting any.

    Raises
    ------
    DevicesError
        If nvidia-smi is not installed.
    """
    tool = shutil.which("nvidia-smi")
    command = [tool or "", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False) if tool else None
    sizes = re.findall(r"^\d+", done.stdout, re.MULTILINE) if done else []
    if not sizes:
        raise DevicesError(
            "neither NVML nor nvidia-smi reports the GPUs' memory; run: pip install 'enplace[gpu]'"
        )
    return min(map(int, sizes)) << 20


def anywhere(config: ConfigProto) -> ConfigProto:
    """Return a config that lets TensorFlow choose where ops run."""
    free = ConfigProto()
    free.CopyFrom(config)
    free.allow_soft_placement = True
    return free


def stock_config(devices: Devices) -> ConfigProto:
    """Return TensorFlow's defaults: its own graph rewriting and threads.

    A process must not divide its GPUs in two ways. On several hosts the servers already have their
    devices and threads.
    """
    free = ConfigProto(allow_soft_placement=True, gpu_options=devices.config.gpu_options)
    if devices.tasks:
        free = anywhere(devices.config)
        free.ClearField("graph_options")
    return free
