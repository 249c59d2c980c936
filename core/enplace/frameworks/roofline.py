"""Times of ops that nobody has measured: a roofline of a GPU, and of one core of a CPU.

An op takes as long as its arithmetic or its memory traffic, whichever takes longer, and a fixed
time for the launch of each kernel. Peaks are those of the makers' data sheets, without sparsity.
Large kernels do not reach them: in the GPU profiles that ship with Enplace, element-wise kernels of
100 MB and more reach 80 to 89 % of the H200's bandwidth, and the largest matrix products 74 % of
its peak. The sum of VGG-19's convolutions there is 18 % shorter than the roofline says, for some
use fewer products than they count; single ones differ by a factor of 0.4 to 3.5.
"""

from __future__ import annotations

from dataclasses import dataclass

F64, F32, F16, F8, I8 = "float64", "float32", "float16", "float8", "int8"
"""Precisions of arithmetic; ``float16`` is also that of bfloat16."""

COMPUTE_SHARE, MEMORY_SHARE = 0.7, 0.85
"""What large kernels reach of the peaks."""

LAUNCH_US = 3.0
"""The least time of a kernel, with the gap before it: the smallest of the bundled profiles take 1.7
to 3.8 µs."""

CORE_FLOPS_PER_US, CORE_BYTES_PER_US, CORE_OP_US = 80e3 * COMPUTE_SHARE, 10e3, 2.0
"""One core of a server: 2.5 GHz with two AVX2 units for fused products, 10 GB/s, and an executor's
work for each op."""


@dataclass(frozen=True)
class Gpu:
    """The peaks of a GPU.

    Attributes
    ----------
    title : str
        Its name for people.
    speed : float
        Its speed in the bundled clusters; times of a profile are those of a GPU of speed 1.
    memory_bytes : int
        Of the card as it is usually sold, without what error correction takes where it is on.
    bytes_per_us : float
        Memory bandwidth.
    plain_flops_per_us : float
        Peak of float32 without tensor cores.
    matrix_flops_per_us : dict of str to float
        Peak of matrix products by precision; ``float32`` uses TF32 where the GPU has it, as
        frameworks do by default.
    """

    title: str
    speed: float
    memory_bytes: int
    bytes_per_us: float
    plain_flops_per_us: float
    matrix_flops_per_us: dict[str, float]


def _gpu(title: str, speed: float, gib: float, gb_s: float, plain: float, **matrix: float) -> Gpu:
    """Take peaks in GB/s and TFLOP/s, as data sheets give them."""
    matrix_us = {precision: peak * 1e6 for precision, peak in matrix.items()}
    return Gpu(title, speed, int(gib * (1 << 30)), gb_s * 1e3, plain * 1e6, matrix_us)


def _card(title: str, gib: float, gb_s: float, plain: float, *peaks: float) -> Gpu:
    """Take the peaks of TF32, float16, float8 and int8; its speed is its bandwidth's share."""
    matrix = dict(zip((F32, F16, F8, I8), peaks, strict=True))
    return _gpu(title, round(gb_s / 4800, 2), gib, gb_s, plain, float64=plain / 32, **matrix)


GPUS = {
    "h200": _gpu(
        "H200", 1.0, 140.4, 4800, 67, float64=67, float32=494, float16=989, float8=1979, int8=1979
    ),
    "h100": _gpu(
        "H100", 0.85, 80, 3350, 67, float64=67, float32=494, float16=989, float8=1979, int8=1979
    ),
    "a100": _gpu(
        "A100", 0.45, 80, 2039, 19.5, float64=19.5, float32=156, float16=312, float8=312, int8=624
    ),
    "v100": _gpu(
        "V100", 0.3, 16, 900, 15.7, float64=7.8, float32=15.7, float16=125, float8=125, int8=62.8
    ),
    "l40s": _card("L40S", 45, 864, 91.6, 183, 362, 733, 733),
    "l4": _card("L4", 22.5, 300, 30.3, 60, 121, 242, 242),
    "t4": _card("T4", 15, 320, 8.1, 8.1, 65, 65, 130),
    "a10": _card("A10", 22.5, 600, 31.2, 62.5, 125, 125, 250),
    "a40": _card("A40", 45, 696, 37.4, 74.8, 149.7, 149.7, 299.3),
    "rtx-a4000": _card("RTX A4000", 16, 448, 19.2, 38.3, 76.7, 76.7, 153.4),
    "rtx-a5000": _card("RTX A5000", 24, 768, 27.8, 55.6, 111.1, 111.1, 222.2),
    "rtx-a6000": _card("RTX A6000", 48, 768, 38.7, 77.4, 154.8, 154.8, 309.7),
    "rtx-6000-ada": _card("RTX 6000 Ada", 48, 960, 91.1, 182.1, 364.2, 728.5, 728.5),
    "rtx-3060": _card("RTX 3060", 12, 360, 12.7, 12.7, 25.5, 25.5, 102),
    "rtx-3080": _card("RTX 3080", 10, 760, 29.8, 29.8, 59.5, 59.5, 238),
    "rtx-3090": _card("RTX 3090", 24, 936, 35.6, 35.6, 71, 71, 284),
    "rtx-4070": _card("RTX 4070", 12, 504, 29.1, 29.1, 58.3, 116.6, 233.2),
    "rtx-4080": _card("RTX 4080", 16, 717, 48.7, 48.7, 97.5, 194.9, 389.9),
    "rtx-4090": _card("RTX 4090", 24, 1008, 82.6, 82.6, 165.2, 330.3, 660.6),
    "rtx-5090": _card("RTX 5090", 32, 1792, 104.8, 104.8, 209.5, 419, 838),
}
"""NVIDIA's data sheets, dense peaks: of H200, H100 80 GB, A100 80 GB and V100 the SXM boards; of
GeForce cards, matrix products that are summed up in float32. A GPU without float8 has its float16
peak there. Error correction takes a sixteenth of the memory of L40S, L4, T4, A10 and A40."""

DEFAULT_GPU = "h200"
"""The GPU of the bundled profiles, which the speeds of the bundled clusters refer to."""


def find_gpu(name: str, flag: str) -> tuple[Gpu, tuple[str, ...]]:
    """Return the GPU of this name; without one the usual GPU, and a sentence that says so."""
    gpu = GPUS[name or DEFAULT_GPU]
    note = f"No GPU was named, so the {gpu.title} was taken; {flag} chooses another."
    return gpu, () if name else (note,)


@dataclass(frozen=True)
class Work:
    """What an op has to do.

    Attributes
    ----------
    flops, matrix_flops : float
        Arithmetic, and that part of it which tensor cores can do.
    n_bytes : float
        Bytes read and written.
    kernels : int
        Kernels that run one after another.
    precision : str
        Of the matrix products.
    """

    flops: float = 0.0
    matrix_flops: float = 0.0
    n_bytes: float = 0.0
    kernels: int = 1
    precision: str = F32

    def __add__(self, other: Work) -> Work:
        """Do one after the other."""
        return Work(
            self.flops + other.flops,
            self.matrix_flops + other.matrix_flops,
            self.n_bytes + other.n_bytes,
            self.kernels + other.kernels,
            self.precision if self.matrix_flops >= other.matrix_flops else other.precision,
        )

    def repeated(self, times: int) -> Work:
        """Do it several times."""
        return Work(
            self.flops * times,
            self.matrix_flops * times,
            self.n_bytes * times,
            self.kernels * times,
            self.precision,
        )


def gpu_us(work: Work, gpu: Gpu) -> float:
    """Estimate the time of an op on a GPU, as that of a GPU of speed 1.

    On a cluster whose GPUs have this GPU's speed, the op then takes what its roofline says.
    """
    plain_us = (work.flops - work.matrix_flops) / gpu.plain_flops_per_us
    matrix_us = work.matrix_flops / gpu.matrix_flops_per_us[work.precision]
    computing_us = (plain_us + matrix_us) / COMPUTE_SHARE
    moving_us = work.n_bytes / (gpu.bytes_per_us * MEMORY_SHARE)
    return gpu.speed * (max(computing_us, moving_us) + LAUNCH_US * work.kernels)


def cpu_us(work: Work) -> float:
    """Estimate the time of an op on one core."""
    computing_us, moving_us = work.flops / CORE_FLOPS_PER_US, work.n_bytes / CORE_BYTES_PER_US
    return max(computing_us, moving_us) + CORE_OP_US * work.kernels
