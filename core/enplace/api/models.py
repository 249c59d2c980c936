"""Models of other frameworks as profiles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral

from enplace.api.checks import checked
from enplace.errors import EnplaceError
from enplace.files.reading import naming
from enplace.frameworks.jobs import measure_profile
from enplace.frameworks.roofline import DEFAULT_GPU
from enplace.frameworks.source import source_of
from enplace.inputs import PathLike
from enplace.option import MAX_SIZE
from enplace.values.profile import Profile


@checked
def read_onnx(
    path: PathLike,
    *,
    gpu: str = DEFAULT_GPU,
    batch_size: int | None = None,
    sizes: Mapping[str, int] | None = None,
    branch: str = "",
) -> Profile:
    """Read an ONNX model, and estimate the time of each op from a roofline of a GPU.

    Nothing in the file runs. Needs ``pip install 'enplace[onnx]'``.

    Parameters
    ----------
    path : str or path
        The model's file.
    gpu : {"h200", "h100", "a100", "v100"}
        The GPU to estimate for.
    batch_size : int, optional
        Its batch, if the file leaves that open; by default 1.
    sizes : mapping of str to int, optional
        Other sizes that the file leaves open: ``{"sequence_length": 128}``.
    branch : str, optional
        Which branch of a large ``If`` to open: ``"then"``, ``"else"`` or the name of a branch's
        graph; by default the one that reads the past.

    Returns
    -------
    Profile
        ``profile.measured.estimated`` names the GPU, ``profile.measured.config["sizes"]`` holds
        all sizes that the file leaves open, as they were chosen, and ``profile.measured.notes``
        says what else to know of how the file was read.

    Raises
    ------
    EnplaceError
        If the file cannot be used, or has no such branch or open size.

    Examples
    --------
    >>> profile = ep.read_onnx("model.onnx", gpu="h100", batch_size=64)
    """
    batch = 0 if batch_size is None else _whole(batch_size, "batch_size", MAX_SIZE)
    chosen = [
        (name, _whole(number, f"sizes[{name!r:.60}]", MAX_SIZE))
        for name, number in (sizes or {}).items()
    ]
    options = {"gpu": gpu, "batch_size": batch, "sizes": tuple(chosen), "branch": branch}
    source = source_of(os.fspath(path), framework_name="onnx", **options)
    with naming(source.path):
        return measure_profile(source, "", 0, 0)


def _whole(number: object, name: str, most: int) -> int:
    if isinstance(number, Integral) and 1 <= int(number) <= most:
        return int(number)
    raise EnplaceError(f"{name} is {number!r:.60}; use a whole number from 1 to {most}")
