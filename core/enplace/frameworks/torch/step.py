"""A recorded training step, as plain values: what ran, on which storages, in which module.

Nothing here needs PyTorch, so that what is made of a recorded step needs none either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median

PARAMETER, GRADIENT, STATE, BUFFER = "parameter", "gradient", "state", "buffer"
"""What a storage holds of a model; other storages hold tensors of the step."""

MODULE, INPUT, LOSS = "module", "input", "loss"


@dataclass(frozen=True)
class Storage:
    """A block of memory that tensors share.

    Attributes
    ----------
    n_bytes : int
    device : str
        As PyTorch names it: ``cpu``, ``cuda:0``.
    first, last : int
        Numbers of the op that made it, -1 if it is older than the step, and of the last op before
        it was freed; ``last`` is the number of ops if it outlives the step.
    role, owner : str
        What it holds of the model (:data:`PARAMETER`...), and the name of that parameter or buffer;
        empty for other storages.
    bits : int
        Of each number of a state; 0 for other storages.
    """

    n_bytes: int
    device: str
    first: int
    last: int
    role: str = ""
    owner: str = ""
    bits: int = 0


@dataclass(frozen=True)
class Work:
    """What an op has to do: see :class:`enplace.frameworks.roofline.Work`.

    Its kernels take ``effort`` times as long as the roofline says. Where it is not ``known``, no
    formula tells the FLOPs, as of an op of another library, or its formula gives no number.
    """

    flops: float = 0.0
    matrix_flops: float = 0.0
    n_bytes: float = 0.0
    precision: str = "float32"
    kernels: int = 1
    effort: float = 1.0
    known: bool = True
    has_formula: bool = False


@dataclass(frozen=True)
class RecordedOp:
    """An op as PyTorch's dispatcher ran it.

    Attributes
    ----------
    kind : str
        Its name without namespace and overload: ``addmm``.
    module : str
        Path of the module that ran it, or whose forward op it is the gradient of; empty for the
        root. ``place`` tells where it is if no module ran it.
    place : str
        :data:`MODULE`, :data:`INPUT` for what comes before the first module, or :data:`LOSS`.
    pass_ : str
        ``forward``, ``backward`` or ``update``.
    call : int
        Number of the dispatcher's call. Ops of one call are parts of an op on lists of tensors.
    share : float
        Their part of its time.
    reads : tuple of (int, int)
        Storages, and the bytes read of each.
    writes, makes : tuple of int
        Storages that it changes, and those that exist since.
    device : str
        Where it ran.
    is_view : bool
        Whether it only shows a storage in another way.
    step_call : int
        The number of the optimiser's step that the op is in, from 1; 0 outside of one.
    optimizer : str
        The type of that optimiser.
    work : Work
    grouped : bool
        Whether it is a convolution by groups.
    crosses : bool
        Whether it copies a tensor from another device.
    of_call : int
        Of a gradient, the call of its forward op; -1 if nothing tells it.
    line : str
        The script and its line, ``train.py, line 7``, of what only allocates and of ops whose
        work is not known; else empty.
    """

    kind: str
    module: str
    place: str
    pass_: str
    call: int
    share: float = 1.0
    reads: tuple[tuple[int, int], ...] = ()
    writes: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    device: str = "cpu"
    is_view: bool = False
    step_call: int = 0
    optimizer: str = ""
    work: Work = field(default_factory=Work)
    grouped: bool = False
    crosses: bool = False
    of_call: int = -1
    line: str = ""


@dataclass(frozen=True)
class Step:
    """A recorded step.

    Attributes
    ----------
    name : str
        The model's class.
    ops, storages : tuple
    batch_shapes : tuple of tuple of int
        Shapes of the tensors that the model was first called with.
    n_models : int
        How many models it trains.
    tied : tuple of (str, str)
        Further names of parameters that have several, each with the first one.
    """

    name: str
    ops: tuple[RecordedOp, ...]
    storages: tuple[Storage, ...]
    batch_shapes: tuple[tuple[int, ...], ...] = ()
    n_models: int = 1
    tied: tuple[tuple[str, str], ...] = ()

    @property
    def state_bits(self) -> int:
        """The bits of most numbers that optimisers keep; 32 if they keep none."""
        n_bytes = Counter({32: 0})
        for each in self.storages:
            if each.bits:
                n_bytes[each.bits] += each.n_bytes
        return max(n_bytes, key=n_bytes.__getitem__)

    def counted_peak_bytes(self, device: str) -> int:
        """Return the most bytes of a device's storages that existed at once."""
        return max(self.alive_bytes(device))

    def alive_bytes(self, device: str = "") -> list[int]:
        """Return the bytes of storages that exist while each op runs, and after the last one.

        Without a device, those of all devices count. States that the step adds to those it had
        count from its start, as they do in the next one.
        """
        change = [0] * (len(self.ops) + 2)
        added = self._added_states()
        for number, each in enumerate(self.storages):
            if each.device == device or not device:
                change[0 if number in added else max(each.first, 0)] += each.n_bytes
                change[min(each.last, len(self.ops)) + 1] -= each.n_bytes
        return [*accumulate(change[:-1])]

    def _added_states(self) -> set[int]:
        """Find the states that stay and take the place of none, such as a history that grows."""
        states = [(n, each) for n, each in enumerate(self.storages) if each.role == STATE]
        end = len(self.ops)
        dropped = Counter(each.owner for _, each in states if each.first < 0 and each.last < end)
        added = set()
        for number, each in states:
            if each.first >= 0 and each.last >= end:
                dropped[each.owner] -= 1
                if dropped[each.owner] < 0:
                    added.add(number)
        return added


@dataclass(frozen=True)
class Timing:
    """What was measured of a step.

    Attributes
    ----------
    step_times_us : tuple of float
        Plain steps with the same optimisers, without a recorder.
    n_near : int
        How many of these were on other shapes, but on batches of nearly the same size.
    n_unlike, n_others : int
        How many more were on other shapes, and how many had other optimisers or another number of
        backward passes.
    call_us, call_kernels : mapping
        By the number of a call: its time, and on a GPU how many kernels it launched.
    call_extra_bytes : mapping
        Memory of a GPU that a call needed only while it ran.
    peak_bytes : mapping of str to int
        By device, the most that was allocated in a plain step.
    gpu : str
        The GPU's name; empty on a CPU.
    gpu_bytes : int
        Its memory.
    unjoined_us : float
        Time of kernels that no op launched.
    allocated_bytes : int
        What the GPU's allocator held as the recorded step began.
    """

    step_times_us: tuple[float, ...] = ()
    call_us: Mapping[int, float] = field(default_factory=dict)
    call_kernels: Mapping[int, int] = field(default_factory=dict)
    call_extra_bytes: Mapping[int, int] = field(default_factory=dict)
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    gpu: str = ""
    gpu_bytes: int = 0
    unjoined_us: float = 0.0
    allocated_bytes: int = 0
    n_near: int = 0
    n_unlike: int = 0
    n_others: int = 0

    @property
    def step_us(self) -> float | None:
        """The plain step: on a GPU the median.

        On a CPU it is the shortest, because other programs only make a step longer. None if there
        is no plain step.
        """
        if not self.step_times_us:
            return None
        return float(median(self.step_times_us) if self.gpu else min(self.step_times_us))
