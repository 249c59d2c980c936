"""Scripts under tf.distribute.MirroredStrategy: those that can be timed, and why others cannot."""

import json

import pytest

HEAD = """
import keras
import numpy as np
import tensorflow as tf
x, y = np.ones((96, 4), "float32"), np.ones((96, 2), "float32")
"""
KERAS = """
tf.config.threading.set_intra_op_parallelism_threads(1)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
largest = keras.metrics.MeanMetricWrapper(lambda a, b: 99.0 + 0 * a, name="above")
model.compile("sgd", "mse", metrics=[largest], steps_per_execution=4)
for _ in range(9):
    loss, largest = model.train_on_batch(x[:8], y[:8])  # a fit of one batch
    assert loss <= largest
"""
LOOP = """
weights = tf.Variable(tf.ones((4, 2)))

@tf.function
def train(rows, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((rows @ weights - labels) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss

for i in range(9):
    train(x[:8], y[:8])
    print("steps:", i + 1)
"""
UNBUILT = """
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def train_step(self, data):
        rows, labels = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.dense(rows) - labels) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}

model = Model()
model.compile("adam")
model.fit(x, y, batch_size=8, verbose=0)
"""
OWN = """
strategy = tf.distribute.MirroredStrategy(["CPU:0"])
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
    optimizer = keras.optimizers.SGD()

def step(rows):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(rows) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
    return loss

@tf.function
def train(rows):
    return strategy.reduce("SUM", strategy.run(step, args=(rows,)), axis=None)

for rows in strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(x).repeat(9)):
    train(rows)
"""
MIXED = f"keras.mixed_precision.set_global_policy('mixed_float16'){KERAS}"
SCRIPTS = {
    "keras": KERAS,
    "mixed": MIXED,
    "unbuilt": UNBUILT,
    "own": OWN,
}
SESSION = """
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    w = tf.compat.v1.get_variable("w", (4, 2))
    train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(x[:8] @ w))
    session.run(tf.compat.v1.global_variables_initializer())
    session.run(train)
"""
STEPS = 2
"""How many steps are timed, after one that warms up."""

TIME = """
import json
from enplace.errors import EnplaceError
from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow.devices import parse_devices
from enplace.frameworks.tensorflow.measure import mirrored
mirrored.WARM_UPS = 1
try:
    found = mirrored.time_mirrored(source_of("train.py"), parse_devices(DEVICES), STEPS, print)
except EnplaceError as error:
    found = str(error)
print(json.dumps(found))
"""


@pytest.fixture
def timed(tmp_path, run_python):
    """A function that times a script in a process of its own; returns times or the refusal."""

    def run(script, devices="cpu:2"):
        (tmp_path / "time.py").write_text(f"DEVICES, STEPS = {devices!r}, {STEPS}{TIME}")
        (tmp_path / "train.py").write_text(HEAD + script)
        done = run_python(tmp_path, "time.py")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.parametrize("style", SCRIPTS)
def test_a_script_is_timed_as_it_is(style, timed):
    times_us = timed(SCRIPTS[style])
    assert len(times_us) >= STEPS
    assert min(times_us) > 0


def test_a_script_with_keras_2_is_timed(timed):
    pytest.importorskip("tf_keras")
    legacy = "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\nimport tf_keras as keras\n"
    assert len(timed(legacy + KERAS)) >= STEPS


def test_a_script_that_allows_no_replicas_is_refused_with_the_reason(timed):
    assert timed(SESSION).startswith("it trains neither with fit of Keras nor")
    older = SESSION.replace("tf.Graph().as_default(), ", "")
    sessions = "tf.distribute does not share out the variables of a TensorFlow 1 session"
    assert timed(f"tf.compat.v1.disable_eager_execution(){older}") == sessions


def test_a_loop_that_shares_out_nothing_ends_before_it_trains(timed):
    assert timed(LOOP.replace("print(", "raise SystemExit(")).startswith("it trains neither with")


def test_a_script_that_fails_in_its_second_step_is_not_timed_by_its_first(timed):
    """TensorFlow prepares the graph in the first step, which takes many times as long."""
    assert timed(OWN + "raise ValueError('odd')").__class__ is list
    assert "odd" in timed(OWN.replace("repeat(9)", "repeat(1)") + "raise ValueError('odd')")
    assert "a step or two only" in timed(OWN.replace("repeat(9)", "repeat(1)"))


def test_fit_is_timed_with_its_first_batch(timed):
    """The rest of the data is smaller, and getting a batch ready is no part of the step."""
    data = """
def draw():
    for number in range(96):
        yield x[:8], y[:8]
        assert number < STEPS, "a step waits for its batch"
"""
    spec = "tuple(tf.TensorSpec([8, n]) for n in (4, 2))"
    fit = f"model.fit(tf.data.Dataset.from_generator(draw, output_signature={spec}), verbose=0)"
    assert len(timed(data + KERAS.partition("for _")[0] + fit)) >= STEPS


def test_a_model_that_is_not_timed_comes_to_an_end(timed):
    """Keras does not know how much data there is, and trains for as long as it gets some."""
    endless = "tf.data.Dataset.from_tensors((x[:8], y[:8])).repeat(3).filter(lambda *_: True)"
    other = "other = type(model).from_config(model.get_config())\nother.compile('sgd', 'mse')\n"
    fits = f"model.fit(x[:8], y[:8], epochs=2)\n{other}other.fit({endless})\n"
    assert len(timed(KERAS.partition("for _")[0] + fits)) == 1


def test_only_the_model_that_is_trained_first_is_timed(timed):
    """That is the profiled one; another one may take a thousand times as long."""
    first, then = KERAS.partition("for _")[0], "other = type(model).from_config(model.get_config())"
    script = f"{first}{then}\nother.compile('sgd', 'mse')\nmodel.train_on_batch(x[:8], y[:8])\n"
    others = f"for _ in range({1 + STEPS}):\n    0.0 + other.train_on_batch(x[:8], y[:8])\n"
    assert "a step or two only" in timed(script + others)
    again = (
        "other.train_on_batch(x[:8], y[:8])\nwhile True:\n    model.train_on_batch(x[:8], y[:8])"
    )
    assert len(timed(script + again)) >= STEPS


def test_one_device_is_not_timed(timed):
    assert timed(LOOP, "cpu:1") == []
