"""Other people's code in a worker: what it writes goes to a scratch folder."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from enplace.frameworks.jobs import about_written, warning_before
from enplace.frameworks.programs import why_failed
from enplace.frameworks.source import Source
from enplace.processes import redirect
from enplace.processes.guard import LANDLOCK, OLD_LANDLOCK, OVERLAYS, PYTHON, guard
from enplace.processes.wire import Message
from enplace.processes.worker import do_job, scratch_program
from forking import fork_workers

WORK = """
import ctypes, glob, os, pathlib, shutil
from enplace.processes.main import done

def work(connection):
    open("new", "w").write("new")
    open("kept", "a").write(" and more")
    assert open("kept").read() == "before and more"
    os.makedirs("a/b")
    pathlib.Path("a/b/c").write_text("c")
    os.rename("a/b", "a/z")
    shutil.copytree("a", "copy")
    shutil.rmtree("a")
    shutil.rmtree("folder")
    assert not os.path.exists("folder/inner")
    os.mkdir("folder")
    assert os.listdir("folder") == []
    os.chdir("folder")
    open("inside", "x").close()
    os.chdir("..")
    os.utime("kept", (0, 0))
    os.symlink("kept", "link")
    os.chmod("kept", 0o600)
    with open("changed", "r+") as file:
        file.write("B")
    assert open("changed").read() == "Before"
    return done(names=sorted(os.listdir(".")), found=sorted(glob.glob("copy/**", recursive=True)))
"""

NATIVE = """
import ctypes
from enplace.processes.main import done

def work(connection):
    libc = ctypes.PyDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = libc.fopen(b"native", b"w")
    return done(refused=file is None)
"""


@pytest.fixture
def do(tmp_path, monkeypatch):
    """Have a worker run code in a folder; return its answer and the files that it wrote there."""
    folder = tmp_path / "folder"
    (folder / "folder").mkdir(parents=True)
    for name in ("kept", "changed", "folder/inner"):
        (folder / name).write_text("before")
    monkeypatch.chdir(folder)
    fork_workers(monkeypatch)

    def run(code, refused):
        name = f"code_{refused}"
        refuse = "OSError(1, 'refused')"
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        if refused:
            where = "enplace.processes.scratch._enter_namespace"
            monkeypatch.setattr(where, lambda: exec(f"raise {refuse}"))
        written = []
        answer = do_job(
            scratch_program(f"{name}:work", "test"), [Message("go")], wrote=written.extend
        )
        names = [path.removeprefix(f"{folder}/") for path in written]
        assert {
            str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()
        } == {
            "kept": "before",
            "changed": "before",
            "folder/inner": "before",
        }
        return answer.details, names

    return run


@pytest.mark.parametrize("refused", [False, True], ids=["overlay", "led"])
def test_files_are_changed_and_read_back_in_scratch_only(do, refused):
    answer, written = do(WORK, refused)
    assert answer["names"] == ["changed", "copy", "folder", "kept", "link", "new"]
    assert answer["found"] == ["copy/", "copy/z", "copy/z/c"]
    names = ["changed", "copy/z/c", "folder/inner", "folder/inside", "kept", "new"]
    assert written == names, "inner is gone"


@pytest.mark.parametrize("refused", [False, True], ids=["overlay", "led"])
def test_native_code_changes_no_file(do, refused):
    """It writes to the overlay; without one, it is refused, as nothing leads it elsewhere."""
    answer, written = do(NATIVE, refused)
    assert answer["refused"] == refused
    assert written == ([] if refused else ["native"])


SPELLINGS = """
import bz2, io, os, pathlib, posix, sqlite3, tempfile
from enplace.processes import redirect
from enplace.processes.main import done

def work(connection):
    refused = []

    def attempt(name, function, *words, **options):
        try:
            if hasattr(found := function(*words, **options), "close"):
                found.close()
        except PermissionError as error:
            refused.append(name)
            assert "Enplace leaves your files as they are" in str(error), error

    there = os.open(".", os.O_RDONLY)
    with open(file="kept", mode="a") as file:
        file.write("!")
    with bz2.open("changed", "w") as file:
        file.write(b"!")
    assert bz2.open("changed").read() == b"!"
    os.utime(path="kept", times=(0, 0))
    os.chmod("kept", 0o777, dir_fd=there)
    os.rename("changed", "moved", src_dir_fd=there, dst_dir_fd=there)
    assert "moved" in os.listdir(None)
    pathlib.Path("kept").replace("changed")
    pathlib.Path("new").touch()
    tempfile.NamedTemporaryFile(dir=".").close()
    os.remove(path="changed")
    place = os.path.abspath("folder/inner")
    with open(place) as inner:
        assert redirect.led_path(redirect.copies, inner, "read") is inner
        attempt("fchmod", os.fchmod, inner.fileno(), 0o777)
        attempt("futimes", os.utime, inner.fileno(), (0, 0))
        attempt("again", open, f"/proc/self/fd/{inner.fileno()}", "w")
    attempt("FileIO", io.FileIO, place, "w")
    attempt("lchown", os.lchown, place, os.getuid(), os.getgid())
    attempt("posix", posix.rename, place, "elsewhere")
    attempt("sqlite", sqlite3.Connection, place)
    attempt("uri", sqlite3.connect, f"file:{place}?mode=rw", uri=True)
    attempt("read-only", sqlite3.connect, f"file:{place}?mode=ro", uri=True)
    attempt("nothing", io.FileIO, os.devnull, "w")
    return done(refused=refused)
"""


def test_python_changes_no_file_whatever_function_does_it(do, monkeypatch):
    """What is not led is refused, also where the kernel refuses nothing."""
    monkeypatch.setattr("enplace.processes.redirect._refuse_the_rest", _know_no_landlock)
    before = os.stat("folder/inner")
    answer, written = do(SPELLINGS, refused=True)
    names = ["fchmod", "futimes", "again", "FileIO", "lchown", "posix", "sqlite", "uri"]
    assert answer["refused"] == names
    assert written == ["changed", "kept", "moved", "new"]
    assert os.stat("folder/inner").st_ctime_ns == before.st_ctime_ns


def _know_no_landlock(folders):
    raise OSError(1, "no Landlock")


SHARING = """
import subprocess
from enplace.processes.main import done
from enplace.processes.worker import scratch_program, sharing_scratch

def work(connection):
    program = sharing_scratch(scratch_program("code:work", "inner"))
    subprocess.run(["touch", "new"], check=True)
    return done(own_scratch=program.changes_nothing)
"""


def test_a_worker_in_overlays_shares_them_with_those_that_it_starts(do):
    """So what these write is listed, too."""
    assert do(SHARING, refused=False) == ({"own_scratch": False}, ["new"])


STRAY = """
import subprocess
from enplace.processes.main import done

def work(connection):
    nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    stray = subprocess.Popen(["sleep", "60"], start_new_session=True, **nothing)
    return done(pid=stray.pid)
"""


def test_a_program_in_a_session_of_its_own_ends_with_the_worker(tmp_path, monkeypatch):
    (tmp_path / "stray.py").write_text(STRAY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = do_job(scratch_program("stray:work", "test"), [Message("go")])
    status = Path(f"/proc/{answer.details['pid']}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"


LINKED = """
import ctypes, os, shutil
from enplace.processes.main import done

def work(connection):
    os.symlink("kept", "link")
    os.symlink("folder", "linked")
    with open("link", "a") as file:
        file.write("!")
    assert open("kept").read() == "before!"
    shutil.move("linked", "moved")
    with open("moved/inner", "w") as file:
        file.write("!")
    assert open("folder/inner").read() == "!"
    os.remove("changed")
    open("empty", "a").close()
    return done()
"""


@pytest.mark.parametrize("refused", [False, True], ids=["overlay", "led"])
def test_links_lead_to_copies(do, refused):
    _, written = do(LINKED, refused)
    assert written == ["changed", "empty", "folder/inner", "kept"]


@pytest.mark.parametrize("refused", [False, True], ids=["overlay", "led"])
def test_links_of_the_user_lead_to_copies(do, refused, tmp_path):
    """The files behind links that were there are as before."""
    (tmp_path / "far").mkdir()
    (tmp_path / "far/file").write_text("before")
    code = LINKED.replace('os.symlink("kept", "link")', 'open("../own/file", "a").write("!")')
    code = code.replace('open("link", "a")', 'open("../link", "a")').replace('"kept"', '"../link"')
    (tmp_path / "own").symlink_to("far")
    (tmp_path / "link").symlink_to("far/link")
    (tmp_path / "far/link").write_text("before")
    _, written = do(code, refused)
    assert (tmp_path / "far/file").read_text() == (tmp_path / "far/link").read_text() == "before"
    assert {str(tmp_path / "far/file"), str(tmp_path / "far/link")} <= {*written}


ENDLESS = """
import os, shutil
from enplace.processes.main import done

def work(connection):
    os.symlink(os.path.abspath("folder"), "folder/again")
    ends = [os.path.isdir("folder" + "/again" * times) for times in (40, 42)]
    try:
        shutil.copytree("folder", "copy")
    except OSError as error:
        said = str(error)
    return done(is_refused="symbolic links" in said, exists=ends)
"""


@pytest.mark.parametrize("refused", [False, True], ids=["overlay", "led"])
def test_a_folder_that_holds_a_link_to_itself_ends_like_on_linux(do, refused):
    answer, _ = do(ENDLESS, refused)
    assert answer == {"is_refused": True, "exists": [True, False]}


def test_what_guards_the_files_is_found_out_and_told(monkeypatch):
    fork_workers(monkeypatch)
    source = Source("/train.py", "script")

    def found():
        guard.cache_clear()
        return guard(), warning_before(source), about_written("train", ["/a", f"{os.getcwd()}/z"])

    assert found()[:2] == (OVERLAYS, "")
    assert "(z, /a)" in found()[2]
    assert found()[2].endswith("your files are as before")
    # Inside of another user's folder, an overlay can be mounted, but nothing written.
    monkeypatch.setattr("enplace.processes.scratch.mount_overlays", lambda rooms: os.chdir("/proc"))
    kind, warning, after = found()
    assert kind in (LANDLOCK, OLD_LANDLOCK)
    assert "may change their modes, owners, times" in warning
    assert "as before" not in after
    monkeypatch.setattr("enplace.processes.redirect.sys.platform", "another")
    kind, warning, after = found()
    assert kind == PYTHON
    assert "run it on a copy" in warning
    assert "as before" not in after
    guard.cache_clear()


@pytest.mark.parametrize("refuses", [False, True])
def test_a_script_is_not_to_be_corrected_where_enplace_refuses_a_write(monkeypatch, refuses):
    monkeypatch.setattr("enplace.processes.redirect.copies", object() if refuses else None)
    why = why_failed(Source("/train.py", "script"), PermissionError(13, "denied"), "denied")
    assert why.endswith("; correct the script") != refuses


@pytest.mark.parametrize("is_theirs", [False, True])
def test_a_refused_write_is_told_with_its_file_unless_nobody_may_write_it(
    monkeypatch, tmp_path, is_theirs
):
    """Libraries name the file in the text of their error only."""
    monkeypatch.setattr("enplace.processes.redirect.copies", object())
    monkeypatch.setitem(redirect._raw, "access", lambda path, mode: not is_theirs)
    error = RuntimeError(
        f"{{{{a_device_/job:x/CPU:0}}}} {tmp_path}/a b_0; Permission denied [Op:I]"
    )
    why = redirect.why_refused(error)
    assert (f" this write to a copy: {tmp_path}/a b_0; allow overlays " in why) != is_theirs
    assert bool(why) != is_theirs
    assert not redirect.why_refused(RuntimeError("another"))


@pytest.mark.parametrize("refuses", [False, True])
def test_a_program_that_failed_may_have_been_refused_a_write(monkeypatch, refuses):
    monkeypatch.setattr("enplace.processes.redirect.refuses", refuses)
    failed = subprocess.CalledProcessError(1, "tar")
    why = why_failed(Source("/train.py", "script"), failed, str(failed))
    assert ("allow overlays" in why) == refuses


MOUNTED = """
import os, subprocess
from enplace.processes.main import done

def work(connection):
    with open("mounted", "a") as file:
        file.write("!")
    subprocess.run("echo '!' > /dev/shm/NAME", shell=True, check=True)
    return done()
"""


def test_mounted_files_and_shared_memory_are_as_before(tmp_path, monkeypatch):
    """As a container's file that is one of its host's."""
    name = f"enplace-test-{os.getpid()}"
    (tmp_path / "mounted.py").write_text(MOUNTED.replace("NAME", name))
    for file in (tmp_path / "source", tmp_path / "mounted"):
        file.write_text("before")
    code = textwrap.dedent(f"""
        import os
        from enplace.processes import scratch
        from enplace.processes.wire import Message
        from enplace.processes.worker import do_job, scratch_program
        scratch._enter_namespace()
        scratch._mount("source", "mounted", "", scratch._BIND)
        do_job(scratch_program("mounted:work", "test"), [Message("go")], wrote=print)
        print(open("mounted").read(), os.path.exists("/dev/shm/{name}"))
    """)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    out = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout == f"['{tmp_path}/mounted']\nbefore False\n"
