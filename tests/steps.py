"""Small training steps for tests that need TensorFlow, and their problems."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow.graph import node_of
from enplace.frameworks.tensorflow.open.load import load
from enplace.frameworks.tensorflow.rewrite import VARIABLES
from enplace.frameworks.tensorflow.step import Step
from enplace.readers.colocation import colocation_groups
from enplace.values.cluster import Cluster
from enplace.values.measurement import Measurement
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import CONTROL, KINDS, Profile, make_profile

MODEL = """
import keras
import numpy as np
import tensorflow as tf

keras.utils.clear_session()
keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x, y = rng.random((80, 4)).astype("float32"), rng.integers(0, 3, 80)
layers = keras.layers
model = keras.Sequential([
    keras.Input((4,)), layers.Dense(8, "relu"), layers.Dropout(0.2), layers.Dense(3)
])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
losses = []
"""

FIT = """
class Watch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs):
        losses.append(float(logs["loss"]))

model.compile("adam", loss_of, jit_compile=globals().get("compiled", False))
model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[Watch()])
losses.append(model.evaluate(x, y, batch_size=8, verbose=0))
weights = model.get_weights()
"""

CUSTOM = """
optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
optimizer.build(model.trainable_variables)

@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

for i in range(20):
    at = slice(8 * (i % 10), 8 * (i % 10) + 8)
    losses.append(float(train_step(tf.constant(x[at]), tf.constant(y[at]))))
losses.append(float(loss_of(y, model(x))))
weights = model.get_weights()
"""

BRANCHES = """
optimizer = keras.optimizers.Adam(
    keras.optimizers.schedules.CosineDecay(1e-3, 50, warmup_target=1e-2, warmup_steps=5),
    gradient_accumulation_steps=2,
)
model.compile(keras.optimizers.LossScaleOptimizer(optimizer), loss_of)
""" + FIT.replace("model.compile", "(lambda *_, **__: None)")

STYLES = {"fit": FIT, "custom": CUSTOM, "branches": BRANCHES}


def write_script(folder: Path, style: str, head: str = "", foot: str = "") -> Path:
    """Write a script in one of :data:`STYLES` that collects ``losses`` of 20 steps and a test.

    If the head says ``compiled = True``, Keras is asked to compile the whole step.
    """
    path = folder / f"{style}.py"
    path.write_text(head + MODEL + STYLES[style] + foot)
    return path


def step_of_script(folder: Path, style: str) -> Step:
    """Load the step of a script in one of :data:`STYLES`."""
    return load(source_of(str(write_script(folder, style))))


def profile_of_step(step: Step) -> Profile:
    """Return a profile with 10 µs per op and variables colocated with their users."""
    nodes = {node.name: node for node in step.graph_def.node}
    index = {name: op for op, name in enumerate(nodes)}
    edges = [
        (
            index[node_of(tensor)],
            CONTROL if tensor[0] == "^" else int(tensor.partition(":")[2] or 0),
            index[name],
        )
        for name, node in nodes.items()
        for tensor in node.input
    ]
    ties = [(a, b) for a, _, b in edges if step.graph_def.node[a].op in VARIABLES]
    source, output, target = np.array(edges).T
    n_ops = len(nodes)
    return make_profile(
        step.name,
        op_names=list(nodes),
        op_types=[node.op for node in nodes.values()],
        scopes=[""] * n_ops,
        time_us=np.full((n_ops, len(KINDS)), (np.nan, 10.0)),
        persistent_bytes=[0] * n_ops,
        temporary_bytes=[0] * n_ops,
        colocation=colocation_groups(list(nodes), ties),
        measured=Measurement(batch_shapes=step.batch_shapes),
        edge_source=source,
        edge_output=output,
        edge_op=target,
        edge_bytes=np.zeros(len(source), dtype=np.int64),
    )


def scattered_plan(problem: Problem, seed: int = 0, **settings: str) -> Plan:
    """Return a plan with random devices and a random valid order."""
    rng = np.random.default_rng(seed)
    unit_device = rng.integers(0, problem.cluster.n_devices, problem.n_units)
    profile = problem.profile
    depth = np.zeros(profile.n_ops)
    for op in profile.topological_order.tolist():
        edges = profile.in_edges[profile.in_ptr[op] : profile.in_ptr[op + 1]]
        depth[op] = depth[profile.edge_source[edges]].max(initial=-1.0) + 1.0
    order = np.lexsort((rng.random(profile.n_ops), depth))
    position = np.empty(profile.n_ops, dtype=np.int64)
    position[order] = np.arange(profile.n_ops)
    return Plan(unit_device[problem.unit], position, "scattered", **settings)


def problem_of(step: Step, cluster: Cluster) -> Problem:
    """Return the problem of a step on a cluster, with the costs of :func:`profile_of_step`."""
    return Problem(profile_of_step(step), cluster)
