"""TensorFlow's worker, with a fake TensorFlow module."""

import signal
import sys
import textwrap
from dataclasses import replace

import pytest

from enplace.errors import EnplaceError
from enplace.frameworks import work
from enplace.frameworks.jobs import RunRequest, do_work, profile_job, run_job
from enplace.frameworks.source import Source
from enplace.frameworks.tensorflow.framework import FRAMEWORK
from enplace.processes.wire import DONE, Message
from enplace.processes.worker import WorkerError, WorkerProgram, do_job, ignore, why_it_ended
from enplace.values.problem import Problem
from problems import cluster_of, plan_of, profile_of


@pytest.fixture
def with_tensorflow(monkeypatch, tmp_path):
    """Put Python code where the worker imports TensorFlow."""

    def put(code):
        (tmp_path / "tensorflow.py").write_text(textwrap.dedent(code))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return put


MODEL = Source("train.py", "script")
REAL_JOB = profile_job(MODEL, "cpu:2", steps=1, warm_ups=0)


def test_without_tensorflow_one_line_explains_how_to_install_it():
    code = (
        "import sys; sys.modules['tensorflow'] = None; "
        "from enplace.frameworks.tensorflow.worker import work; "
        "from enplace.processes.main import serve; serve(work)"
    )
    with pytest.raises(EnplaceError) as caught:
        do_job(WorkerProgram((sys.executable, "-c", code), "TensorFlow"), REAL_JOB)
    assert str(caught.value) == f"TensorFlow is not installed; run: {FRAMEWORK.install_command}"


def test_a_failing_import_of_tensorflow_is_reported_with_its_reason(with_tensorflow):
    with_tensorflow("raise ImportError('libcudart.so is missing\\nand more')")
    with pytest.raises(
        EnplaceError, match=r"does not start \(ImportError: libcudart.so is missing\)"
    ):
        do_work(MODEL, REAL_JOB)


@pytest.mark.parametrize(
    ("when", "most_ops", "is_timed"), [("quick", 3, True), ("quick", 2, False), ("always", 2, True)]
)
def test_data_parallelism_of_many_ops_is_predicted_and_timed_on_request(
    when, most_ops, is_timed, monkeypatch
):
    monkeypatch.setattr(work, "QUICK_OPS", most_ops)
    problem = Problem(
        profile_of({"a": 10, "b": 20, "c": 30}, [("a", "b", 8), ("b", "c", 8)]), cluster_of(2)
    )
    plan = plan_of(problem, {"a": 0, "b": 0, "c": 1})
    *values, job = run_job(RunRequest(MODEL, "cpu:2", 1, data_parallel=when), problem, plan)
    found = work.time_data_parallel(
        job, values, lambda *_: Message(DONE, {"times_us": [7.0]}), ignore
    )
    if is_timed:
        assert found == {"times_us": [7.0]}
    else:
        assert "a copy of 3 ops for each device takes long" in found["why_not"]
        assert "predicted_us" in found


def test_data_parallelism_beside_a_run_has_the_whole_batch_of_which_a_part_was_profiled(
    monkeypatch,
):
    monkeypatch.setattr(work, "QUICK_OPS", 0)
    profile = profile_of({"batch": 0, "product": 1000}, [("batch", "product", 8)])
    profile = replace(profile, op_types=("IteratorGetNext", "MatMul"))
    found = []
    for source in ({}, {"cut_batch": 4}):
        measured = replace(profile.measured, source=source, batch_shapes=((8, 2),))
        problem = Problem(replace(profile, measured=measured), cluster_of(2))
        plan = plan_of(problem, {"batch": 0, "product": 1})
        request = RunRequest(MODEL, "cpu:2", 1, data_parallel="quick")
        *values, job = run_job(request, problem, plan)
        facts = work.time_data_parallel(job, values, lambda *_: Message(DONE, {}), ignore)
        found.append(facts["predicted_us"])
    assert found[1] == pytest.approx(4 * found[0], rel=0.02)  # but for the launch


def test_output_of_libraries_and_children_is_kept_apart_from_messages(with_tensorflow):
    with_tensorflow(
        """
        import os, sys
        print("a library prints")
        os.system("echo a child prints")
        os.write(1, b"straight to the stream\\n")
        assert sys.stdin.read() == ""  # the job is not there to be read by a script
        os._exit(9)
        """
    )
    with pytest.raises(WorkerError, match="exit status 9") as caught:
        do_work(MODEL, REAL_JOB)
    lines = ["a library prints", "a child prints", "straight to the stream"]
    assert caught.value.last_lines.splitlines() == lines


def test_modules_in_the_current_folder_do_not_shadow_libraries(
    with_tensorflow, monkeypatch, tmp_path
):
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "queue.py").write_text("raise RuntimeError('not the library')")
    monkeypatch.chdir(folder)
    with_tensorflow("raise ImportError('enough')")
    with pytest.raises(EnplaceError, match="enough"):
        do_work(MODEL, REAL_JOB)


@pytest.mark.parametrize(
    ("code", "last_lines", "why"),
    [
        (-signal.SIGKILL, "OOM when allocating", "TensorFlow ran out of memory"),
        (-signal.SIGABRT, "ResourceExhaustedError: OOM when allocating", "batch"),
        (1, "MemoryError", "TensorFlow ran out of memory"),
        (-signal.SIGKILL, "", "killed (signal 9); unless you ended it"),
        (-signal.SIGSEGV, "", "TensorFlow crashed (SIGSEGV)"),
        (-signal.SIGILL, "", "another processor"),
        (0, "", "a script must not end its process itself"),
        (3, "", "exit status 3"),
    ],
)
def test_an_unexpected_end_of_the_worker_is_explained(code, last_lines, why):
    assert why in why_it_ended(FRAMEWORK.worker, code, last_lines)
