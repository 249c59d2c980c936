"""Measurements that come with a profile, besides the costs of its ops and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from enplace.files.records import Ratio, Signed
from enplace.values.cluster import Cluster

ESTIMATED = "estimated"
"""Stands wherever a time shows that nobody has measured."""


@dataclass(frozen=True)
class MeasuredLink:
    """Transfers of several sizes between two devices, and the line b0 + b1 * bytes through them.

    Attributes
    ----------
    source, target : str
        Names of the devices.
    size_bytes, time_us : tuple of float, of equal length
        The transfers.
    b0_us, b1_us_per_byte, r2 : float
        The line, and its coefficient of determination.
    """

    source: str = field(metadata={"key": "from"})
    target: str = field(metadata={"key": "to"})
    size_bytes: tuple[float, ...] = field(metadata={"key": "sizes"})
    time_us: tuple[float, ...] = field(metadata={"key": "times_us"})
    b0_us: Signed
    b1_us_per_byte: Signed
    r2: Ratio


@dataclass(frozen=True)
class Deviation:
    """How far the estimates for ops differ from the measurements.

    Attributes
    ----------
    mean : float
        Mean over the ops of abs(estimated - measured) / measured.
    of_sum : float
        The same for the sum of all ops.
    near : float
        Share of the ops whose estimate is less than 20 % off.
    ops : int
        Number of ops compared.
    """

    mean: float
    of_sum: float
    near: float
    ops: int = 0


@dataclass(frozen=True)
class Evaluation:
    """How accurate the estimated costs of a large batch are (Celeritas, Table 5).

    Attributes
    ----------
    memory, time : Deviation
    batch_size : int
        The batch size that was estimated, then measured.
    batch_sizes : tuple of int
        The batch sizes that the estimate is based on.
    devices_used : int
        Number of devices that the large batch was measured on.
    step_time_us : float
        The measured step time of the large batch.
    """

    memory: Deviation
    time: Deviation
    batch_size: int
    batch_sizes: tuple[int, ...]
    devices_used: int
    step_time_us: float


@dataclass(frozen=True)
class Measurement:
    """How a profile was measured. None, an empty text or an empty mapping means "unknown".

    Attributes
    ----------
    step_time_us : float or None
        Median step without tracing.
    stock_step_time_us : float or None
        Median step as the framework runs it by itself: its own rewriting of the graph, all threads.
    op_devices : mapping of str to str
        Where each op ran: by op name, the device's name in ``cluster``.
    op_kernels : mapping of str to int
        Number of kernels that each op launched.
    op_deviation : mapping of str to float
        Relative standard deviation of each op's time.
    peak_bytes : mapping of str to int
        Peak memory by device.
    launch_gap_us, op_overhead_us : float or None
        Calibrated gap before each kernel on a GPU, and cost of each op on a CPU.
    cluster : Cluster or None
        The devices that the profile was measured on.
    links : tuple of MeasuredLink, or None
        None if links were not measured.
    devices : str
        The devices as they were requested, such as ``"cpu:2"``.
    source : mapping
        The model and how it was called; plain data of a framework's source.
    paper : str
        The paper that the profile comes from.
    function : str
        The function whose step was measured.
    left_out : tuple of str
        Functions of the model that are not part of that step.
    compiled : bool or None
        Whether the script compiles its step itself.
    steps, warm_ups : int or None
        Traced steps, and the steps before them that do not count.
    gpu, framework_version, placement : str
        The GPU's model, the framework's version, and how the profiled step was placed.
    framework : str
        The name of the framework's folder, if ``source`` does not say it.
    tf32 : bool or None
        Whether matrix products may use TF32.
    config : mapping
        Settings of the model; plain data.
    backward : tuple of int, or None
        Numbers of the backward ops, in the inputs of Tarnawski et al. 2020.
    guessed_backward : str
        An op of the backward pass, if that was guessed from names because no op says its pass.
    split_lengths : mapping
        By op name and dimension, the largest number of equal parts. An op in this mapping cannot be
        split along any other dimension.
    batch_shapes : tuple of tuple of int
        Shape of each part of a batch, as the step takes them.
    device_scopes : mapping of str to str
        By op name, the device on which the model's own code puts it, such as with ``tf.device``.
    keeps_device_scopes : bool or None
        Whether these ops are pinned there.
    evaluation : Evaluation or None
        The evaluation of a batch that no single device can hold.
    estimated : str
        The GPU whose roofline the op times come from; empty if they were measured.
    estimated_speed : float or None
        That GPU's speed in a cluster, with which its ops take what the roofline says.
    state_bits : int
        Bits of each number in an optimiser's states.
    notes : tuple of str
        What people should know of how the graph was read, a sentence or two each.
    other : mapping
        Data of a newer Enplace or another program, kept unchanged.
    """

    step_time_us: float | None = None
    stock_step_time_us: float | None = None
    op_devices: Mapping[str, str] = field(default_factory=dict)
    op_kernels: Mapping[str, int] = field(default_factory=dict)
    op_deviation: Mapping[str, Ratio] = field(default_factory=dict)
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    launch_gap_us: float | None = None
    op_overhead_us: float | None = None
    cluster: Cluster | None = None
    links: tuple[MeasuredLink, ...] | None = None
    devices: str = ""
    source: Mapping[str, Any] = field(default_factory=dict)
    paper: str = field(default="", metadata={"key": "source"})
    function: str = ""
    left_out: tuple[str, ...] = ()
    compiled: bool | None = None
    steps: int | None = None
    warm_ups: int | None = None
    gpu: str = ""
    framework_version: str = ""
    framework: str = ""
    placement: str = ""
    tf32: bool | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    backward: tuple[int, ...] | None = None
    guessed_backward: str = ""
    split_lengths: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    batch_shapes: tuple[tuple[int, ...], ...] = ()
    device_scopes: Mapping[str, str] = field(default_factory=dict)
    keeps_device_scopes: bool | None = None
    evaluation: Evaluation | None = None
    estimated: str = ""
    estimated_speed: float | None = None
    state_bits: int = 32
    notes: tuple[str, ...] = ()
    other: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runs_as_recorded(self) -> bool:
        """Whether the framework runs ops in the order of their numbers, as eager PyTorch does."""
        return self.framework == "torch"

    @property
    def about_times(self) -> str:
        """A sentence that says where op times come from; empty if they were measured."""
        if not self.estimated:
            return ""
        return f"Op times are estimated from a roofline of the {self.estimated}, not measured."

    @property
    def about_passes(self) -> str:
        """A sentence that says how the backward pass was guessed; empty if it was not."""
        if not self.guessed_backward:
            return ""
        return (
            f"The backward pass is guessed from names such as '{self.guessed_backward}'; "
            f'if that is wrong, say the "pass" of the ops.'
        )

    def title_of(self, time: str) -> str:
        """Name a time that is predicted from op times: ``estimated step time`` if these are."""
        return f"{ESTIMATED} {time}" if self.estimated else time

    @property
    def framework_name(self) -> str:
        """The name of the framework's folder; empty if nothing says it."""
        return self.source.get("framework_name") or self.framework

    @property
    def parts_of_batch(self) -> int:
        """How many micro-batches each batch was cut into, of which one was recorded."""
        return int(self.source.get("cut_batch") or 1)

    @property
    def batch_size(self) -> int | None:
        """Number of samples in a step; None if it is not known."""
        shapes = [shape[0] for shape in self.batch_shapes if shape]
        said = [self.source.get("batch_size"), self.config.get("batch"), *shapes[:1]]
        return next((size for size in said if isinstance(size, int) and size > 0), None)
