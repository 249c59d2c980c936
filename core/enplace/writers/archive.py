"""The ``.enplace`` file: a zip of JSON and npz, see :mod:`enplace.readers.archive`."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from enplace.errors import FileError
from enplace.files.json_text import dump_json
from enplace.files.reading import naming
from enplace.files.writing import write_atomically
from enplace.names.guessed_passes import without_guessed_passes
from enplace.readers.archive import (
    ARRAYS,
    BASE,
    FLOAT,
    FLOATS,
    HOLDS,
    MAX_PLANS,
    NAME,
    TEXTS,
    VERSION,
    WHOLE,
    Project,
    check_members,
    may_lack,
)
from enplace.values.plan_facts import facts_to_json
from enplace.values.profile import IntArray, Profile, has_column
from enplace.writers.clusters import cluster_to_json
from enplace.writers.measurement import measurement_to_json
from enplace.writers.split_list import splits_to_json


def write_archive(path: str | os.PathLike[str], profile: Profile) -> None:
    """Write a profile as ``.enplace``; the same profile gives the same bytes.

    Raises
    ------
    FileError
        If the file cannot be written, or could not be read again.
    """
    with naming(path):
        content = _zip_to_read(_profile_members(profile))
    write_atomically(path, content)


def write_project(path: str | os.PathLike[str], project: Project, *, packed: bool = True) -> None:
    """Write a project as ``.enplace``.

    Parameters
    ----------
    packed : bool
        Whether to compress it, which takes most of the time.

    Raises
    ------
    FileError
        If the file cannot be written, or could not be read again.
    """
    if len(project.plans) > MAX_PLANS:
        raise FileError(f"{path}: holds {len(project.plans):,} plans; remove some")
    members = _profile_members(project.profile) | {
        "project.json": dump_json(_project_to_json(project)).encode(),
        "plans.npz": _npz(
            {
                f"{field_name}_{i}": getattr(plan, field_name)
                for i, (_, plan) in enumerate(project.plans)
                for field_name in ("device", "position")
            }
        ),
    }
    with naming(path):
        content = _zip_to_read(members, packed)
    write_atomically(path, content)


@lru_cache(maxsize=1)  # the studio copies unsaved work after every edit
def _profile_members(profile: Profile) -> dict[str, bytes]:
    profile = without_guessed_passes(profile)
    header = {"format": f"{NAME}/{VERSION}"}
    written = [key for key in (*TEXTS, *ARRAYS) if not may_lack(key) or _says_much(profile, key)]
    texts = {"name": profile.name} | {key: getattr(profile, key) for key in TEXTS if key in written}
    texts["measured"] = measurement_to_json(profile.measured)
    arrays = {key: getattr(profile, key) for key in ARRAYS if key in written}
    return {
        "enplace.json": dump_json(header).encode(),
        "profile.json": dump_json(texts).encode(),
        "profile.npz": _npz(arrays),
    }


def _says_much(profile: Profile, name: str) -> bool:
    """Whether an array that may be left out says anything."""
    if name == BASE:
        return len(profile.sharing) > 0
    return len(profile.hold_op) > 0 if name in HOLDS else has_column(profile, name)


def _project_to_json(project: Project) -> dict[str, Any]:
    return {
        "cluster": cluster_to_json(project.cluster) if project.cluster else None,
        **{kind.field: rows for kind, rows in project.constraints.items()},
        "plans": [
            {
                "name": name,
                "method": plan.method,
                "policy": plan.policy,
                "links": plan.links,
                "facts": facts_to_json(plan),
                "splits": splits_to_json(plan.splits),
            }
            for name, plan in project.plans
        ],
        "view": dict(project.view),
        "splits": splits_to_json(project.splits),
    }


def _zip_to_read(members: Mapping[str, bytes], packed: bool = True) -> bytes:
    """Make a zip that the reader takes: one that packs too well looks like a bomb."""
    content = _zip(members, packed)
    try:
        check_members(members, len(content))
    except FileError:
        if packed:
            return _zip_to_read(members, packed=False)
        raise FileError("too large to be read again; remove plans, if it has any") from None
    return content


def _zip(members: Mapping[str, bytes], packed: bool = True) -> bytes:
    buffer = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, how, 6)
    return buffer.getvalue()


def _npz(arrays: Mapping[str, Any]) -> bytes:
    """Make an npz without compressing its members: the outer zip does that.

    Whole numbers are of the smallest type that holds them.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            little = array.astype(FLOAT if name in FLOATS else _whole_type(array), copy=False)
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, little, allow_pickle=False)
    return buffer.getvalue()


def _whole_type(array: IntArray) -> str:
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    return next(t for t in WHOLE if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
