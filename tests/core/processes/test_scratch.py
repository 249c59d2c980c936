"""Other people's code in a worker: what it writes goes to a scratch folder."""

import textwrap

import pytest

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
            monkeypatch.setattr(
                "enplace.processes.scratch._enter_namespace", lambda: exec(f"raise {refuse}")
            )
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
    assert written == ["changed", "copy/z/c", "folder/inside", "kept", "new"]


@pytest.mark.parametrize("refused", [False, True], ids=["overlay", "led"])
def test_native_code_changes_no_file(do, refused):
    """It writes to the overlay; without one, it is refused, as nothing leads it elsewhere."""
    answer, written = do(NATIVE, refused)
    assert answer["refused"] == refused
    assert written == ([] if refused else ["native"])
