"""Workers that misbehave, seen from the process that started them."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap

import pytest

from enplace.errors import CancelledError, CostError, DoesNotFitError, EnplaceError
from enplace.processes import child
from enplace.processes.wire import Message, WireError
from enplace.processes.worker import WorkerError, WorkerProgram, do_job, why_it_ended

JOB = (Message("profile", {"source": {}}),)
SPEAK = """
    import os, signal, sys, time
    from enplace.processes.wire import Message, encode, read
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    def send(do, **details):
        out.write(encode(Message(do, details)))
        out.flush()
    job = read(sys.stdin.buffer)
"""


@pytest.fixture(autouse=True, params=["Linux", "any system"])
def system(request, monkeypatch):
    """Start workers as on Linux, then as where there is nothing but threads."""
    monkeypatch.setattr(child, "ON_LINUX", request.param == "Linux")


def work(code, messages=JOB, speak=SPEAK, **options):
    """Do a job in a worker that runs some Python code."""
    script = f"{textwrap.dedent(speak)}\n{textwrap.dedent(code)}"
    return do_job(WorkerProgram((sys.executable, "-c", script), "test"), messages, **options)


def fail_work(code, **options) -> WorkerError:
    with pytest.raises(WorkerError) as caught:
        work(code, **options)
    assert "\n" not in str(caught.value)
    return caught.value


def is_gone(pid: int) -> bool:
    """Return whether a process has ended or is about to."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended, _, _ = select.select([handle], [], [], 1)
    os.close(handle)
    return bool(ended)


def test_progress_and_answer_arrive():
    reports = []
    done = work(
        """
        send("progress", message="warming up", fraction=None)
        send("progress", message="measuring", fraction=0.5)
        send("done", got=job.do)
        """,
        progress=lambda message, fraction: reports.append((message, fraction)),
    )
    assert done.details == {"got": "profile"}
    assert reports == [("warming up", None), ("measuring", 0.5)]


def test_messages_arrive_complete_however_they_are_written():
    reports = []
    done = work(
        """
        parts = [encode(Message("progress", {"message": str(i)})) for i in range(3)]
        whole = b"".join(parts) + encode(Message("done", {"n": 3}))
        for part in (whole[:5], whole[5:70], whole[70:-1], whole[-1:]):
            out.write(part)
            out.flush()
        """,
        progress=lambda message, fraction: reports.append(message),
    )
    assert reports == ["0", "1", "2"]
    assert done.details == {"n": 3}


def test_output_of_a_script_is_never_taken_for_a_message():
    done = work(
        """
        for i in range(2000):
            print("step", i, "loss 0.25", flush=True)
            os.system("echo from a child") if i == 1000 else None
        send("done")
        """
    )
    assert done.do == "done"


def test_a_large_job_arrives_even_if_the_worker_prints_a_lot():
    big = Message("profile", {"source": {}, "names": "x" * (8 << 20)})
    done = work(
        "send('done', n=len(job.details['names']))",
        messages=[big],
        speak='__import__("sys").stderr.write("loading " * 100_000)' + textwrap.dedent(SPEAK),
    )
    assert done.details == {"n": 8 << 20}


def test_noise_before_the_first_message_is_shown_as_what_it_is():
    error = fail_work("print('Welcome to this machine')", speak="")
    assert "cannot be read" in str(error)
    assert "Welcome to this machine" in str(error)


def test_an_input_error_keeps_its_type():
    with pytest.raises(CostError, match=r"^op 'a' takes NaN; profile again$"):
        work("send('failed', why=\"op 'a' takes NaN; profile again\", kind='CostError')")
    with pytest.raises(DoesNotFitError):
        work("send('failed', why='too big', kind='DoesNotFitError')")


def test_other_errors_come_with_the_last_lines_of_output():
    error = fail_work(
        """
        for i in range(100):
            print("line", i)
        sys.stdout.flush()
        send("failed", why="ValueError: no", kind="WorkerError")
        """,
    )
    assert str(error) == "ValueError: no"
    assert error.last_lines.splitlines() == [f"line {i}" for i in range(60, 100)]


@pytest.mark.parametrize("kind", ["annotations", "nonesuch", None, "EnplaceWarning"])
def test_an_unknown_error_type_becomes_a_worker_error(kind):
    assert str(fail_work(f"send('failed', why='oh', kind={kind!r})")) == "oh"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed (signal 9); unless you ended it"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed (SIGSEGV)"),
        ("os.abort()", "crashed (SIGABRT)"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "ended by another program (SIGTERM)"),
        ("os._exit(3)", "exit status 3"),
        ("sys.exit(0)", "exit status 0"),
        ("raise ValueError", "exit status 1"),
    ],
)
@pytest.mark.parametrize(
    "speak", [SPEAK, "import os, signal, sys"], ids=["after reading", "before reading"]
)
def test_a_worker_that_ends_without_an_answer_is_explained(speak, code, why):
    assert why in str(fail_work(code, speak=speak))


def test_the_last_lines_before_a_crash_are_kept():
    error = fail_work("print('about to go wrong', flush=True); os.abort()")
    assert error.last_lines == "about to go wrong"
    assert error.details == {"last_lines": ["about to go wrong"]}


def test_a_worker_that_closes_its_output_is_ended():
    fail_work("out.close(); time.sleep(3600)")


def test_children_that_outlive_a_worker_are_ended(tmp_path):
    code = f"""
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(3600)
        open({str(tmp_path / "pid")!r}, "w").write(str(pid))
        os._exit(5)
    """
    assert "exit status 5" in str(fail_work(code))
    assert is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    "stubborn",
    ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"],
    ids=["ends", "ignores SIGTERM"],
)
def test_cancelling_ends_a_worker_and_its_children(stubborn):
    pids = []
    code = f"""
        {stubborn}
        pid = os.fork()
        if pid:
            send("progress", message=f"{{os.getpid()}} {{pid}}")
        while True:
            time.sleep(3600)
    """
    with pytest.raises(CancelledError):
        work(
            code,
            progress=lambda m, f: pids.extend(map(int, m.split())),
            cancelled=lambda: bool(pids),
        )
    assert all(map(is_gone, pids))


def test_an_interrupt_ends_the_worker():
    pids = []

    def interrupt(message, fraction):
        pids.append(int(message))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work("send('progress', message=str(os.getpid())); time.sleep(3600)", progress=interrupt)
    assert is_gone(pids[0])


def test_a_worker_that_cannot_listen_ends_with_the_process_that_started_it():
    """A library of another language may keep Python's lock for as long as it likes."""
    busy = """
        import ctypes
        pid = os.fork()
        if pid:
            send("progress", message=f"{os.getpid()} {pid}")
        ctypes.PyDLL(None).sleep(3600)
    """
    parent = """
        import sys
        from enplace.processes.worker import WorkerProgram, do_job
        from enplace.processes.wire import Message
        program = WorkerProgram((sys.executable, "-c", sys.argv[1]), "test")
        do_job(program, [Message("profile", {})], progress=lambda m, f: print(m, flush=True))
    """
    scripts = [
        textwrap.dedent(text) for text in (parent, textwrap.dedent(SPEAK) + textwrap.dedent(busy))
    ]
    with subprocess.Popen([sys.executable, "-c", *scripts], stdout=subprocess.PIPE) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(pids) == 2
    assert all(map(is_gone, pids))


def test_what_a_killed_worker_leaves_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(WorkerError):
        work(
            """
            import tempfile
            open(tempfile.mkdtemp() + "/checkpoint", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    assert list(tmp_path.iterdir()) == []


def test_without_room_for_temporary_files_no_worker_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert "does not start: No such file or directory" in str(fail_work(""))


def test_a_worker_that_never_reads_its_job_does_not_end_the_command(monkeypatch):
    """SIGPIPE has its default action; elsewhere, that Python ignores it must do."""
    monkeypatch.setattr(child, "ON_LINUX", True)
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        big = Message("profile", {"source": {}, "names": "x" * (8 << 20)})
        error = fail_work("sys.exit(4)", messages=[big], speak="import sys")
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert "exit status 4" in str(error)


def test_an_unknown_signal_is_reported_by_number():
    assert "signal 250" in why_it_ended(WorkerProgram((), "test"), -250, "")


def test_protocol_errors_are_enplace_errors():
    assert issubclass(WireError, EnplaceError)
    assert issubclass(WorkerError, EnplaceError)


def test_no_file_is_left_open():
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    work("send('done')")
    before = count()
    work("send('done')")
    fail_work("os._exit(1)")
    assert count() == before


def test_a_worker_that_gives_up_is_quoted():
    why = "the server of /job:worker/task:1 does not answer any more"
    assert why_it_ended(WorkerProgram((), "test"), 1, f"noise\nenplace: {why}") == why
