"""Overlays of all file systems, and which files a worker has changed in them.

They are mounted before anything has started a thread, so this imports little.
"""

from __future__ import annotations

import ctypes
import errno
import filecmp
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FOLDERS = "ENPLACE_SCRATCH"
"""Variable with the scratch folders, of which none is on the way to all others."""

WAY, UPPER, GONE, _WORK = "way", "upper", "gone", "work"
"""In a scratch folder, for each overlay: where it is, what is changed there, and room to work.

Only where nothing but Python's functions makes it, a file lists what is gone.
"""

_SYSTEM = (
    "bin",
    "boot",
    "dev",
    "etc",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "proc",
    "sbin",
    "sys",
    "usr",
)
"""Folders of ``/`` that hold no one's work; they can only be read."""

_DEVICES, SHARED = ("/dev", "/proc", "/sys"), "/dev/shm"
"""Where files stand for other things, except for those in memory that programs share."""

_COPIED_BYTES = 64 << 20
"""A single file that is mounted gets a copy up to this size, and else can only be read."""

_NOT_DISKS = (
    *("autofs", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs"),
    *("efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "securityfs"),
    *("selinuxfs", "sysfs", "tracefs"),
)

_NEWNS, _NEWUSER = 0x20000, 0x10000000
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 1 << 5, 1 << 12, 1 << 14, 1 << 18
_KEPT = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
"""What ``statvfs`` says of a mount, as ``mount`` must be told again; see their manual pages."""

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class _Mount:
    """What is mounted at a path.

    Attributes
    ----------
    is_open : bool
        Whether people write there.
    is_folder : bool
        Whether it is a folder, and not a single file.
    descriptor : int
        By it, the mount is reached once it is hidden.
    """

    path: str
    is_open: bool
    is_folder: bool
    descriptor: int

    @property
    def origin(self) -> str:
        return f"/proc/self/fd/{self.descriptor}"


is_mounted = False
"""Whether this process sees overlays, and what it starts, too."""


def mount_overlays(folders: Sequence[str]) -> None:
    """Let this process, and what it starts, see an overlay of each file system.

    Raises
    ------
    OSError, AttributeError
        If the kernel refuses, or is not Linux. Nothing outside of this process has changed.
    """
    global is_mounted
    here = os.getcwd()
    _enter_namespace()
    kept = [mount for path in compiled_code() if (mount := _opened(path))]
    rooms = [mount for path in folders if (mount := _opened(path))]
    seen: list[str] = []
    for number, mount in enumerate(_mounts()):
        try:
            if mount.is_open and not mount.is_folder:
                _hide_behind_copy(mount, f"{rooms[0].origin}/{number}")
            elif mount.path == SHARED:
                _overlay_in_memory(mount, f"{rooms[0].origin}/{number}")
            elif mount.is_open:
                _overlay(mount, rooms, str(number))
                seen.append(mount.path)
            elif is_in(mount.path, seen):
                _bind(mount)
        except OSError:
            if is_in(here, [mount.path]):
                raise
            _bind(mount)
            _make_read_only(mount.path)
    for mount in kept:
        _bind(mount)
    _make_read_only("/")
    os.chdir(here)
    is_mounted = True


def can_overlay(folders: Sequence[str]) -> bool:
    """Return whether this process can work in overlays: tried in another, which then ends.

    With only its own user in the namespace, the kernel changes nothing in a folder inside of
    another user's.
    """
    if sys.platform != "linux":
        return False
    could_write = os.access(".", os.W_OK)
    tried = os.fork()
    if tried:
        return os.waitstatus_to_exitcode(os.waitpid(tried, 0)[1]) == 0
    status = 1
    try:
        rooms = [tempfile.mkdtemp(dir=folder) for folder in folders]
        mount_overlays(rooms)
        if could_write:
            os.rmdir(tempfile.mkdtemp(dir="."))
        status = 0
    finally:
        os._exit(status)


def _enter_namespace() -> None:
    """Enter a namespace of mounts in which this process may mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_NEWNS):
        if libc.unshare(_NEWNS | _NEWUSER):
            raise OSError(ctypes.get_errno(), "no namespace")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text)
    _mount("none", "/", "", _REC | _PRIVATE)


def _mounts() -> list[_Mount]:
    """Find what is mounted where, and folders of ``/``; outer ones come first."""
    found: dict[str, tuple[bool, bool]] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        path = _ESCAPE.sub(lambda code: chr(int(code[1], 8)), fields[4])
        if path == SHARED or not is_in(path, _DEVICES):
            found[path] = after.split()[0] not in _NOT_DISKS, "rw" in fields[5].split(",")
    root = found.pop("/", (False, False))
    for entry in os.scandir("/"):
        if entry.name not in _SYSTEM and entry.is_dir(follow_symlinks=False):
            found.setdefault(entry.path, root)
    opened = [_opened(path, *found[path]) for path in sorted(found, key=lambda p: p.count("/"))]
    return [mount for mount in opened if mount]


def _opened(path: str, is_disk: bool = False, is_open: bool = False) -> _Mount | None:
    """Return a mount, or nothing if this process may not reach it."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    mode = os.fstat(descriptor).st_mode
    is_folder = stat.S_ISDIR(mode)
    is_open = is_disk and is_open and (is_folder or stat.S_ISREG(mode))
    return _Mount(path, is_open, is_folder, descriptor)


def compiled_code() -> list[str]:
    """Return the folders of compiled code, which is the same whoever runs it."""
    own = str(Path(__file__).resolve().parents[1])
    cards = os.environ.get("CUDA_CACHE_PATH") or os.path.expanduser("~/.nv")
    return [path for path in (own, os.environ.get("NUMBA_CACHE_DIR", ""), cards) if path]


def _bind(mount: _Mount) -> None:
    """Show what an overlay hides: it ends where something else is mounted."""
    _mount(mount.origin, mount.path, "", _BIND | _REC)


def _overlay(mount: _Mount, rooms: Sequence[_Mount], name: str) -> None:
    """Mount an overlay of a folder over it.

    What is changed must be neither inside of that folder nor, as in a container, on an overlay.
    """
    room = next((room for room in rooms if not is_in(room.path, [mount.path])), None)
    if room is not None:
        with suppress(OSError):
            return _overlay_in(f"{room.origin}/{name}", mount)
    return _overlay_in_memory(mount, f"{rooms[0].origin}/{name}")


def _overlay_in_memory(mount: _Mount, room: str) -> None:
    memory = f"{room}/memory"
    os.makedirs(memory, exist_ok=True)
    _mount("tmpfs", memory, "tmpfs", 0)
    return _overlay_in(memory, mount)


def _hide_behind_copy(mount: _Mount, room: str) -> None:
    """Mount a copy of a single file over it."""
    if os.stat(mount.origin).st_size > _COPIED_BYTES:
        raise OSError(errno.EFBIG, "too large to copy")
    folder, name = os.path.split(mount.path)
    os.makedirs(os.path.join(room, UPPER))
    Path(room, WAY).write_text(folder)
    copy = os.path.join(room, UPPER, name)
    shutil.copy2(mount.origin, copy)
    _mount(copy, mount.path, "", _BIND)


def _overlay_in(room: str, mount: _Mount) -> None:
    upper, work = os.path.join(room, UPPER), os.path.join(room, _WORK)
    os.makedirs(upper, exist_ok=True)
    os.makedirs(work, exist_ok=True)
    Path(room, WAY).write_text(mount.path)
    usual = os.stat(mount.origin)
    os.chmod(upper, stat.S_IMODE(usual.st_mode))
    options = f"lowerdir={mount.origin},upperdir={upper},workdir={work}"
    try:
        _mount("overlay", mount.path, "overlay", 0, f"{options},userxattr")
    except OSError:  # an older kernel, which only root needs
        _mount("overlay", mount.path, "overlay", 0, options)


def _make_read_only(path: str) -> None:
    said = os.statvfs(path).f_flag
    kept = sum(flag for bit, flag in _KEPT.items() if said & bit)
    _mount("none", path, "", _REMOUNT | _BIND | _RDONLY | kept)


def _mount(what: str, where: str, kind: str, flags: int, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    texts = [text.encode(errors="surrogateescape") for text in (what, where, kind)]
    if libc.mount(*texts, ctypes.c_ulong(flags), options.encode(errors="surrogateescape")):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {where}: {os.strerror(number)}")


def is_in(path: str, folders: Collection[str]) -> bool:
    """Return whether an absolute path is one of some folders, or inside of one."""
    return any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for folder in folders)


def written_files(folders: Sequence[str], private: Sequence[str]) -> list[str]:
    """List the files that somebody would have found changed or gone, but for the scratch folders.

    Parameters
    ----------
    private : sequence of str
        How the paths of temporary folders of Enplace's begin.
    """
    found = set[str]()
    for folder in folders:
        for way in Path(folder).glob(f"*/{WAY}"):
            upper, at = way.parent / UPPER, way.read_text()
            for inner, folders_in, names in os.walk(upper):
                place = os.path.normpath(os.path.join(at, os.path.relpath(inner, upper)))
                pairs = ((os.path.join(inner, n), os.path.join(place, n)) for n in names)
                found |= {usual for copy, usual in pairs if _differs(copy, usual)}
                if _is_new(inner) and os.path.isdir(place):
                    left = set(os.listdir(place)).difference(names, folders_in)
                    found |= {os.path.join(place, name) for name in left}
            found |= _gone_from(way.parent)
    return sorted(path for path in found if not _is_unasked(path, private))


def _gone_from(room: Path) -> set[str]:
    try:
        gone = (room / GONE).read_text().split("\0")
    except FileNotFoundError:
        return set()
    upper = room / UPPER
    return {
        path for path in gone if os.path.lexists(path) and not os.path.lexists(f"{upper}{path}")
    }


def _is_new(folder: str) -> bool:
    """Return whether a folder in an overlay hides all of the folder that it replaces."""
    for space in ("user", "trusted"):
        with suppress(OSError, AttributeError):
            if os.getxattr(folder, f"{space}.overlay.opaque") == b"y":
                return True
    return False


def _differs(copy: str, usual: str) -> bool:
    """Return whether what is in an overlay is another file, or says that one is gone."""
    status = os.lstat(copy)
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        return os.path.lexists(usual)
    if not stat.S_ISREG(status.st_mode):
        return False
    try:
        return not filecmp.cmp(copy, usual, shallow=False)
    except OSError:
        return True


def _is_unasked(path: str, private: Sequence[str]) -> bool:
    """Return whether libraries write a file without being told, as in caches and settings."""
    if path.startswith(tuple(private)) or "__pycache__" in path:
        return True
    home = os.path.expanduser("~")
    inside = os.path.relpath(path, home)
    return is_in(path, [home]) and inside.startswith(".") and os.sep in inside
