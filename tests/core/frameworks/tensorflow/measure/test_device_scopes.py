"""The devices that a script asks for with ``tf.device``, op by op."""

import textwrap

from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow.devices import parse_devices
from enplace.frameworks.tensorflow.measure.profile import graph_profile
from enplace.frameworks.tensorflow.open.load import load

STEP = """
import tensorflow as tf
weights = [tf.Variable(tf.ones((4, 4)), name=f"weight_{i}") for i in range(3)]

@tf.function
def half(x):
    return x / 2.0

@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        with tf.device("/CPU:1"):
            x = half(tf.tanh(x @ weights[0]))
            for i in range(2):
                x = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.exp(x), lambda: x)
        with tf.device("/device:CPU:0"):
            x = tf.sin(x @ weights[1])
        loss = tf.reduce_mean(tf.cos(x @ weights[2]))
    for weight, gradient in zip(weights, tape.gradient(loss, weights)):
        weight.assign_sub(gradient)
    return loss

train_step(tf.ones((3, 4)))
"""
SESSION = """
import tensorflow as tf
tf1 = tf.compat.v1
with tf.Graph().as_default():
    x = tf.ones((3, 4))
    with tf.device("/cpu:1"):
        w = tf1.get_variable("w", (4, 4), use_resource=True)
        h = tf.tanh(x @ w)
    loss = tf.reduce_mean(tf.sin(h))
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    config = tf1.ConfigProto(device_count={"CPU": 2})
    with tf1.Session(config=config) as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(20):
            session.run([train, loss])
"""
FIT = """
import keras, numpy as np
keras.utils.set_random_seed(1)
layers = [keras.layers.Embedding(9, 4), keras.layers.LSTM(4), keras.layers.Dropout(0.1)]
model = keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(2)])
model.compile("adam", "mse", metrics=["mae"])
model.fit(np.zeros((8, 5)), np.zeros((8, 2)), verbose=0)
"""


def scopes_of(tmp_path, text):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(text))
    profile = graph_profile(load(source_of(script)), parse_devices("cpu:2"))
    kinds = dict(zip(profile.op_names, profile.op_types, strict=True))
    by_type = {}
    for op, device in profile.measured.device_scopes.items():
        by_type.setdefault(kinds[op], set()).add(device)
    return by_type


def test_scopes_reach_the_functions_that_are_called_in_them(tmp_path):
    found = scopes_of(tmp_path, STEP)
    assert found["Tanh"] == found["RealDiv"] == {"CPU:1"}
    assert found["Sin"] == {"CPU:0"}
    assert found["MatMul"] == {"CPU:0", "CPU:1"}
    assert not {"Cos", "TanhGrad", "VarHandleOp", "AssignSubVariableOp"} & found.keys()


def test_scopes_of_sessions_are_read_from_the_graph(tmp_path):
    found = scopes_of(tmp_path, SESSION)
    assert found["Tanh"] == found["VarHandleOp"] == {"CPU:1"}
    assert "Sin" not in found


def test_keras_itself_asks_for_no_device(tmp_path):
    assert scopes_of(tmp_path, FIT) == {}
