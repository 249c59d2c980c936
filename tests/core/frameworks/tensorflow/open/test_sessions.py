"""Scripts that train in TensorFlow 1 sessions: loaded as they are."""

import pytest

from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow.devices import parse_devices
from enplace.frameworks.tensorflow.graph import has_effect
from enplace.frameworks.tensorflow.measure.profile import graph_profile
from enplace.frameworks.tensorflow.open.load import load
from enplace.frameworks.tensorflow.step import LoadError, OpenStep
from enplace.machine import simulate
from enplace.values.result import Result
from enplace.writers.plans import write_plan
from steps import problem_of, scattered_plan

HEAD = """
import numpy as np
import tensorflow.compat.v1 as tf

rng = np.random.RandomState(0)
data, labels = rng.rand(160, 4), rng.randint(0, 3, 160)
printed = []
plain = tf.ConfigProto()
plain.graph_options.rewrite_options.disable_meta_optimizer = True

def show():
    print(*[repr(float(value)) for value in printed])

def weight(name, shape):
    start = tf.truncated_normal_initializer(stddev=0.5, seed=len(name))
    return tf.get_variable(name, shape, initializer=start)

"""
PLAIN = """
tf.disable_control_flow_v2()  # this and older variables are what disable_v2_behavior chooses
with tf.Graph().as_default():
    tf.set_random_seed(1)
    tf.get_variable_scope().set_use_resource(False)
    x = tf.placeholder(tf.float32, name="rows")
    y = tf.placeholder(tf.int64, [None])
    keep = tf.placeholder_with_default(1.0, ())
    hidden = tf.nn.relu(tf.reshape(x, (-1, 4)) @ weight("first", (4, 8)))
    logits = tf.nn.dropout(hidden, rate=1 - keep, seed=2) @ weight("second", (8, 3))
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits), name="loss"
    )
    counter = tf.train.get_or_create_global_step()
    train = tf.train.AdamOptimizer(0.1).minimize(loss, global_step=counter)
    means = tf.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([train]):
        train = means.apply(tf.trainable_variables())
    saver = tf.train.Saver()
    with tf.Session(config=plain) as session:
        session.run(tf.global_variables_initializer())
        for i in range(12):
            at = slice(8 * i, 8 * i + 8)
            feeds = {x: data[at], y: labels[at], "PlaceholderWithDefault:0": 0.7}
            printed.append(session.run({"train": [train], "loss": loss}, feeds)["loss"])
            if i % 4 == 3:
                printed.append(loss.eval({x: data, y: labels}))
        saver.save(session, FOLDER + "/saved")
        saver.restore(session, FOLDER + "/saved")
        doubled = 2 * loss  # the graph grows
        printed.append(session.run(doubled, {x: data, y: labels}))
        printed.append(session.make_callable(loss, [x, y])(data, labels))
        printed.append(session.run(counter))
        both = [(each, means.average(each)) for each in tf.trainable_variables()]
        printed += [np.abs(value).sum() for pair in session.run(both) for value in pair]
    show()
"""
MONITORED = """
def main(_):
    with tf.Graph().as_default():
        def prepared(row, label):
            with tf.device("CPU:0"):  # as in the functions of Dataset.from_generator
                return tf.cast(row, tf.float32), label

        rows = tf.data.Dataset.from_tensor_slices((data, labels)).map(prepared).batch(8)
        batches = tf.data.make_initializable_iterator(rows)
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, batches.initializer)
        x, y = batches.get_next()
        logits = tf.nn.relu(x @ weight("first", (4, 8))) @ weight("second", (8, 3))
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        loss = tf.reduce_mean(each)
        counter = tf.train.get_or_create_global_step()
        rate = tf.train.exponential_decay(0.1, counter, 5, 0.9)
        optimizer = tf.train.MomentumOptimizer(rate, 0.9)
        pairs = optimizer.compute_gradients(loss)
        clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 1.0)
        train = optimizer.apply_gradients(zip(clipped, [v for _, v in pairs]), counter)
        hooks = [tf.train.StopAtStepHook(18), tf.train.NanTensorHook(loss)]
        hooks.append(tf.train.LoggingTensorHook([tf.reduce_sum(logits)], every_n_iter=6))
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=FOLDER if "enplace" in globals() else None, hooks=hooks, config=plain
        ) as session:
            while not session.should_stop():
                _, value = session.run((train, {"loss": loss}))
                printed.append(value["loss"])
    show()

if __name__ == "__main__":
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.app.run(main)
"""
SEVERAL = """
with tf.Graph().as_default():
    words = tf.placeholder(tf.float32, [None, 5, 4], name="words")
    cell, out = weight("cell", (12, 8)), weight("out", (8, 1))
    def body(t, state):
        return t + 1, tf.tanh(tf.concat([words[:, t], state], 1) @ cell)
    start = tf.constant(0), tf.zeros((tf.shape(words)[0], 8))
    _, state = tf.while_loop(lambda t, state: t < 5, body, start)
    real = tf.reduce_mean((state @ out - 1) ** 2, name="loss_of_real")
    guess = tf.stop_gradient(state) @ weight("fake", (8, 1))
    fake = tf.reduce_mean(tf.abs(guess), name="fake_loss")
    one = tf.train.RMSPropOptimizer(0.01).minimize(real, var_list=[cell, out], name="first")
    other = tf.train.GradientDescentOptimizer(0.1).minimize(fake, name="second")
    session = tf.Session(config=plain)
    session.run(tf.global_variables_initializer())
    for i in range(10):
        feeds = {words: rng.rand(6, 5, 4)}
        printed.append(session.run([one, real], feeds)[1])
        session.run(other, feeds)
        printed.append(session.run(fake, feeds))
    session.close()
    show()
"""
LIKE_KERAS_2 = """
from tensorflow.core.protobuf.config_pb2 import CallableOptions

with tf.Graph().as_default(), tf.Session(config=plain) as session:
    rows = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(data).batch(8))
    batch = tf.cast(rows.get_next(), tf.float32)
    x, y = tf.placeholder(tf.float32, (None, 4)), tf.placeholder(tf.float32, ())
    hidden = tf.tanh(x @ weight("first", (4, 8)))
    loss = tf.reduce_mean((hidden @ weight("second", (8, 1)) - y) ** 2, name="loss")
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    session.run(tf.global_variables_initializer())
    options = CallableOptions(feed=[y.name], fetch=[loss.name], target=[train.name])
    options.tensor_connection.add(from_tensor=batch.name, to_tensor=x.name)
    step = session._make_callable_from_options(options)
    printed += [step(np.float32(i))[0] for i in range(12)]
    show()
"""
STYLES = {
    "plain": PLAIN,
    "monitored": MONITORED,
    "several": SEVERAL,
    "like Keras 2": LIKE_KERAS_2,
}


def script(folder, text, head=""):
    (folder / "out").mkdir(exist_ok=True)
    path = folder / "train.py"
    given = text.replace("FOLDER", repr(str(folder / "out")))
    path.write_text(head + HEAD + given)
    return path


def loaded(folder, style):
    return load(source_of(str(script(folder, STYLES[style]))))


@pytest.fixture
def run_script(run_python):
    """A function that runs a script; returns the words that it prints last, and its errors."""

    def run(path):
        done = run_python(path.parent, str(path))
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1].split(), done.stderr

    return run


@pytest.mark.parametrize("style", STYLES)
def test_a_script_with_a_session_is_loaded_as_it_is(style, tmp_path, run_script):
    step = loaded(tmp_path, style)
    with OpenStep(step) as alone:
        losses = [alone.run() for _ in range(4)]
    usual, _ = run_script(script(tmp_path, STYLES[style]))
    own = [repr(float(value)) for (value, *_) in losses]
    # The first call of a monitored session also logs, so it is of another kind.
    steps = {"monitored": usual[1:], "several": usual[::2]}
    assert own == steps.get(style, usual)[:4]


def test_a_session_runs_without_an_applied_plan_and_is_told_so(tmp_path, run_script):
    step = loaded(tmp_path, "plain")
    usual, _ = run_script(script(tmp_path, PLAIN))
    problem = problem_of(step, parse_devices("cpu:2").cluster)
    write_plan(tmp_path / "plan.json", Result(simulate(problem, scattered_plan(problem, seed=1))))
    apply = "import enplace\nenplace.apply('plan.json')\n"
    unplaced, stderr = run_script(script(tmp_path, PLAIN, apply))
    assert unplaced == usual
    assert "TensorFlow 1 sessions run without the plan: run theirs with 'enplace run'" in stderr


def test_what_a_script_feeds_gives_placeholders_their_shapes(tmp_path):
    step = loaded(tmp_path, "plain")
    assert step.inputs == ("rows", "Placeholder", "PlaceholderWithDefault")
    assert step.batch_shapes == ((8, 4), (8,), ())
    profile = graph_profile(step, parse_devices("cpu:1"))
    source = profile.op_names.index("rows")
    assert profile.tensor_bytes[profile.tensor_op == source].tolist() == [4 * 8 * 4]


def test_of_several_calls_that_train_the_others_are_named(tmp_path):
    step = loaded(tmp_path, "several")
    assert step.function == "first"
    assert step.left_out == ("second",)
    assert step.losses == ("loss_of_real:0",)


LENGTHS = """
with tf.Graph().as_default(), tf.Session() as session:
    rows = tf.placeholder(tf.float32, [None, 4])
    loss = tf.reduce_mean(tf.square(rows @ weight("first", (4, 2))))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    session.run(tf.global_variables_initializer())
    for length in (9, 1, 2, 3, 4, 5, 6, 7, 8, 5, *range(10, 100)):
        session.run(train, {rows: data[:length]})
    print("trained to its end")
"""


def test_a_step_fed_with_batches_of_many_lengths_is_for_the_most_common_one(tmp_path, capsys):
    step = load(source_of(str(script(tmp_path, LENGTHS))))
    assert "trained to its end" not in capsys.readouterr().out
    assert step.batch_shapes == ((5, 4),)
    assert len(step.batches) == 2


QUEUE = """
with tf.Graph().as_default(), tf.Session() as session:
    queue = tf.FIFOQueue(99, tf.float32, (4, 2))
    fill = queue.enqueue_many(np.ones((50, 4, 2)))
    loss = tf.reduce_sum(tf.square(queue.dequeue() @ weight("first", (2, 2))))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    session.run(tf.global_variables_initializer())
    session.run(fill)
    for _ in range(9):
        session.run(train)
"""


def test_a_session_that_cannot_be_placed_is_explained_with_its_line(tmp_path):
    explained = r"train\.py, line \d+: op '.*' \(.*\) is part of a queue;"
    with pytest.raises(LoadError, match=explained):
        load(source_of(str(script(tmp_path, QUEUE))))


def test_what_changes_an_old_variable_has_an_effect():
    """Without it, a call that only evaluates is taken for the step, and takes another batch."""
    assert all(map(has_effect, ("Assign", "ApplyMomentum", "AssignVariableOp")))
    assert not any(map(has_effect, ("MatMul", "IsVariableInitialized", "RefSwitch")))
