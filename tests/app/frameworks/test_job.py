import psutil
import pytest

from enplace.frameworks.jobs import profile_job
from enplace.frameworks.source import source_of
from enplace_studio.frameworks.job import WorkerJob
from fake_framework import use_worker


@pytest.fixture
def start(model, qtbot):
    """Start the job that profiles a model of this name."""
    started = []

    def start_it(name):
        source = source_of(str(model(name)))
        job = WorkerJob(source.framework.worker, profile_job(source, "cpu:2", 10, 1))
        started.append(job)
        job.start()
        return job

    yield start_it
    for job in started:
        job.close()


def ended(process):
    """Return whether a process has ended, even if its status has not been collected."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def processes_of(job, qtbot):
    """Return the process ids of the stubborn worker and of its child."""
    qtbot.waitUntil(lambda: job.text.replace(" ", "").isdigit())
    return [psutil.Process(int(number)) for number in job.text.split()]


def failure(qtbot, job):
    with qtbot.waitSignal(job.failed) as failed:
        pass
    return failed.args


def test_progress_and_the_result_arrive(start, qtbot):
    job = start("mine.py")
    with qtbot.waitSignal(job.done) as done:
        pass
    assert done.args[0].details["op_names"] == ["a", "b", "c"]
    assert (job.text, job.fraction) == ("Step 1 of 2", 0.5)


def test_a_crash_is_reported_with_the_last_lines(start, qtbot):
    why, lines = failure(qtbot, start("crash.py"))
    assert "SIGSEGV" in why
    assert lines.splitlines() == [f"line {number}" for number in range(20, 60)]


def test_a_worker_that_exits_early_is_reported(start, qtbot):
    why, lines = failure(qtbot, start("leave.py"))
    assert "exit status 3" in why
    assert lines


def test_an_input_error_is_reported_in_one_line(start, qtbot):
    assert failure(qtbot, start("refuse.py")) == ["mine.py: takes no training step", ""]


def test_stray_output_among_the_messages_is_reported(start, qtbot):
    why, _ = failure(qtbot, start("babble.py"))
    assert "Epoch 1" in why


def test_cancel_ends_a_worker_that_ignores_sigterm_and_its_child(start, qtbot):
    job = start("stubborn.py")
    processes = processes_of(job, qtbot)
    with qtbot.waitSignal(job.cancelled):
        job.cancel()
    qtbot.waitUntil(lambda: all(map(ended, processes)))


def test_closing_sends_no_signal_and_leaves_no_process(start, qtbot):
    job = start("stubborn.py")
    processes = processes_of(job, qtbot)
    with qtbot.assertNotEmitted(job.failed), qtbot.assertNotEmitted(job.cancelled):
        job.close()
    qtbot.waitUntil(lambda: all(map(ended, processes)))


def test_a_worker_that_cannot_start_is_reported(start, qtbot, monkeypatch):
    use_worker(monkeypatch, "/nowhere/python")
    why, _ = failure(qtbot, start("mine.py"))
    assert "does not start" in why
