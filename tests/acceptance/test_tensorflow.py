"""From an unchanged model to a measured run of a plan, with the commands that a user types.

TensorFlow runs in worker processes, as always, on two logical CPUs.
"""

import json

import pytest

from blocks import MANUAL, blocks_of, commands_of, quick, shell, without_progress
from enplace.errors import CancelledError
from enplace.frameworks.jobs import do_work, profile_job
from enplace.frameworks.registry import usual_framework
from enplace.frameworks.source import Source, source_of
from enplace.frameworks.trust import trust
from enplace.frameworks.verification_page import verification_html
from enplace.frameworks.verifying import verify
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

FIT = """
import keras
import numpy as np

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(np.ones((64, 8), "f4"), np.ones((64, 1), "f4"), batch_size=8, epochs=2, verbose=0)
"""


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A trusted folder with both scripts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "fit.py").write_text(FIT)
    trust(Source(str(tmp_path / "train.py"), "script"))
    return tmp_path


def run_as_json(command, folder):
    """Run a command that must succeed and return its JSON."""
    done = shell(f"{command} --json", folder)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert without_progress(done.stderr) == ""
    return json.loads(done.stdout)


def commands_of_the_guide():
    """Return the commands of the page on measuring, as a reader types them."""
    blocks = blocks_of(MANUAL / "how-to" / "measure.md")
    return [line for block in blocks if not block.why_not_run for line in commands_of(block)]


def test_the_commands_of_the_guide_work_from_start_to_end(workspace, monkeypatch):
    (workspace / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(workspace / "scratch"))
    typed = commands_of_the_guide()
    names = [command.split()[1] for command in typed]
    assert names == ["profile", "place", "run", "tune", "profile"]
    typed[names.index("tune")] += " --rounds 1"
    answers = [
        (name, run_as_json(quick(line), workspace)) for name, line in zip(names, typed, strict=True)
    ]
    found = dict(answers[:-1])
    assert found["profile"]["measured_step_time_us"] > 0
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


def test_a_plan_for_both_devices_changes_only_where_a_keras_model_runs(workspace):
    run_as_json("enplace profile fit.py -o P.enplace --devices cpu:2 --steps 10", workspace)
    run_as_json(
        "enplace place P.enplace --cluster local --method round-robin -o plan.json", workspace
    )
    devices = {
        entry["device"] for entry in json.loads((workspace / "plan.json").read_text())["ops"]
    }
    assert devices == {"CPU:0", "CPU:1"}
    check_run(run_as_json("enplace run fit.py plan.json --steps 20", workspace))


def check_run(run):
    assert run["steps"] == 20
    assert run["ops_on_planned_device"] == run["ops_checked"] > 20
    assert run["order_violations"] == 0
    assert run["loss_difference"] == 0
    assert run["weights_difference"] == 0


ENDLESS = """
import tensorflow as tf

@tf.function
def for_ever():
    return tf.while_loop(lambda i: i < 2, lambda i: i * 1, [1])

open("begun", "w").close()
for_ever()
"""


def test_cancelling_interrupts_tensorflow(workspace, monkeypatch):
    (workspace / "endless.py").write_text(ENDLESS)
    monkeypatch.chdir(workspace)
    source = source_of("endless.py")
    job = profile_job(source, "cpu:2", steps=10, warm_ups=1)
    with pytest.raises(CancelledError):
        do_work(source, job, cancelled=(workspace / "begun").exists)


def test_verify_runs_a_bundled_model_exactly_as_planned_on_logical_cpus():
    framework = usual_framework()
    attention = [script for script in framework.bundled if script.stem == "attention"]
    found = verify(framework, "cpu:2", attention, ("single", "round-robin"), steps=4)
    assert found.as_planned, found.advice
    assert found.verdict.startswith("Runs as planned: 2 of 2 plans exact, median")
    first, second = found.checks
    assert [device.measured_busy_us > 0 for device in first.devices] == [True, False]
    assert [device.measured_busy_us > 0 for device in second.devices] == [True, True]
    assert "CPU 1, measured" in verification_html(found)
