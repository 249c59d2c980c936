"""From an unchanged model to a measured run of a plan, with the commands that a user types.

Commands and workers are processes of their own, as always, but forked from one that has imported
TensorFlow; tests of the README start that of ``profile`` anew. The devices are two logical CPUs.
"""

import json
import shlex

import pytest

from blocks import MANUAL, blocks_of, commands_of, quick, without_progress
from enplace.frameworks.source import Source
from enplace.frameworks.trust import trust
from enplace.readers import read_profile

TRAIN = """
import argparse
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
batch = parser.parse_args().batch
x, y = tf.random.normal((batch, 8), seed=1), tf.random.normal((batch, 4), seed=2)
weights = [
    tf.Variable(tf.random.normal((a, b), stddev=0.1, seed=3), name=f"layer_{i}/weights")
    for i, (a, b) in enumerate([(8, 64), (64, 64), (64, 4)])
]

@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        for w in weights[:-1]:
            x = tf.nn.relu(x @ w)
        loss = tf.reduce_mean(tf.square(x @ weights[-1] - y))
    for w, gradient in zip(weights, tape.gradient(loss, weights)):
        w.assign_sub(0.1 * gradient)
    return loss

for step in range(10):
    print("loss", float(train_step(x, y)))
"""

SPREAD = "enplace place P.enplace --cluster local --method round-robin -o plan.json"
"""The usual plan of so small a model has one device."""


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A trusted folder with the script."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "train.py").write_text(TRAIN)
    trust(Source(str(tmp_path / "train.py"), "script"))
    return tmp_path


@pytest.fixture
def run_as_json(workspace, run_python):
    """A function that runs a command, which must succeed, and returns its JSON."""

    def run(command):
        done = run_python(workspace, "-m", *shlex.split(command), "--json")
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert without_progress(done.stderr) == ""
        return json.loads(done.stdout)

    return run


def commands_of_the_guide():
    """Return the commands of the page on measuring, as a reader types them."""
    blocks = blocks_of(MANUAL / "how-to" / "measure.md")
    return [line for block in blocks if not block.why_not_run for line in commands_of(block)]


def test_the_commands_of_the_guide_work_from_start_to_end(workspace, run_as_json, monkeypatch):
    (workspace / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(workspace / "scratch"))
    typed = commands_of_the_guide()
    names = [command.split()[1] for command in typed]
    assert names == ["profile", "place", "run", "tune", "profile"]
    typed[names.index("tune")] += " --rounds 1"
    typed[-1] = typed[-1].replace("64,128,256", "64,128")
    typed.insert(names.index("run"), SPREAD)
    answers = [(line.split()[1], run_as_json(quick(line))) for line in typed]
    found = dict(answers[:-1])
    assert found["profile"]["measured_step_time_us"] > 0
    planned = json.loads((workspace / "plan.json").read_text())
    assert {op["device"] for op in planned["ops"]} == {"CPU:0", "CPU:1"}
    check_run(found["run"])
    assert found["run"]["step_time_us"] > 0
    assert not list((workspace / "scratch").iterdir())
    assert found["run"]["predicted_step_time_us"] > 0
    assert found["tune"]["step_time_us"] <= found["tune"]["first_step_time_us"]
    # The last command estimates a large batch: tensor sizes exactly, times roughly.
    profile = read_profile(str(workspace / "P.enplace"))
    evaluation = profile.measured.evaluation
    assert evaluation.memory.mean < 0.1
    assert evaluation.time.ops > 10
    assert evaluation.step_time_us > 0
    relu = profile.index["Relu"]
    assert profile.tensor_bytes[profile.tensor_op == relu].tolist() == [512 * 64 * 4]


def check_run(run):
    assert run["steps"] == 20
    assert run["ops_on_planned_device"] == run["ops_checked"] > 20
    assert run["order_violations"] == 0
    assert run["loss_difference"] == 0
    assert run["weights_difference"] == 0


ENDLESS = """
import socket
import tensorflow as tf

@tf.function
def for_ever():
    return tf.while_loop(lambda i: i < 2, lambda i: i * 1, [1])

socket.create_connection(("127.0.0.1", int(open("port").read())))
for_ever()
"""


CANCEL = """
import select
import socket
from pathlib import Path
from enplace.errors import CancelledError
from enplace.frameworks.jobs import do_work, profile_job
from enplace.frameworks.source import source_of

# What the script writes is not to be seen here, so it says by a connection that it has begun.
server = socket.create_server(("127.0.0.1", 0))
Path("port").write_text(str(server.getsockname()[1]))
source = source_of("endless.py")
job = profile_job(source, "cpu:2", steps=10, warm_ups=1)
try:
    do_work(source, job, cancelled=lambda: bool(select.select([server], [], [], 0)[0]))
except CancelledError:
    print("cancelled")
"""


def test_cancelling_interrupts_tensorflow(workspace, run_python):
    (workspace / "endless.py").write_text(ENDLESS)
    done = run_python(workspace, "-c", CANCEL)
    assert (done.stdout, done.returncode) == ("cancelled\n", 0), done.stderr


VERIFY = """
from enplace.frameworks.registry import usual_framework
from enplace.frameworks.verification_page import verification_html
from enplace.frameworks.verifying import verify

framework = usual_framework()
towers = [script for script in framework.bundled if script.stem == "mlp"]
found = verify(framework, "cpu:2", towers, ("single", "round-robin"), steps=4)
assert found.as_planned, found.advice
assert found.verdict.startswith("Runs as planned: 2 of 2 plans, ")
first, second = found.checks
assert [device.measured_busy_us > 0 for device in first.devices] == [True, False]
assert [device.measured_busy_us > 0 for device in second.devices] == [True, True]
(shared,) = found.data_parallel
assert shared.measured_us > 0, shared.why_not
assert "CPU 1, measured" in verification_html(found, "1")
"""


def test_verify_runs_a_keras_model_exactly_as_planned_on_logical_cpus(tmp_path, run_python):
    done = run_python(tmp_path, "-c", VERIFY)
    assert done.returncode == 0, done.stderr
