"""Models of every kind become a step with the same results as the original, bit for bit."""

import os
import runpy
import textwrap
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from enplace.errors import FileError
from enplace.frameworks.source import Source, source_of
from enplace.frameworks.tensorflow.open.load import load
from enplace.frameworks.tensorflow.open.scripts import plain_keras
from enplace.frameworks.tensorflow.step import LoadError, OpenStep

N_STEPS = 5

HEAD = """
import keras
import numpy as np
import tensorflow as tf
keras.utils.clear_session()
keras.utils.set_random_seed(3)
x = np.random.default_rng(0).random((48, 4)).astype("float32")
words = (x * 5).astype("int32")
y = x[:, :2]
losses = []
"""

FIT = """
class Watch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs):
        losses.append(logs["loss"])

model.fit(inputs, y, batch_size=8, shuffle=False, verbose=0, callbacks=[Watch()])
"""


def script(folder, text, head=HEAD, name="train.py"):
    path = folder / name
    path.write_text(head + textwrap.dedent(text))
    return str(path)


def step_losses(step, n_steps=N_STEPS):
    wanted = step.outputs.index(step.losses[0])
    with OpenStep(step) as alone:
        return [alone.run()[wanted] for _ in range(n_steps)]


def assert_same(path):
    """Check that the captured step has the same losses as the script."""
    step = load(source_of(path))
    expected = runpy.run_path(path, run_name="__main__")["losses"][:N_STEPS]
    assert len(expected) == N_STEPS
    np.testing.assert_array_equal(step_losses(step), expected)
    return step


MODELS = {
    "dropout": (
        """
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="relu"),
                                  keras.layers.Dropout(0.5), keras.layers.Dense(2)])
        """,
        "x",
        "model.compile('adam', 'mse', metrics=['mae'])",
    ),
    "recurrent": (
        """
        model = keras.Sequential([keras.Input((4,)), keras.layers.Embedding(5, 3),
                                  keras.layers.LSTM(3), keras.layers.Dense(2)])
        """,
        "words",
        "model.compile('rmsprop', 'mse')",
    ),
    "convolution": (
        """
        model = keras.Sequential([keras.Input((4,)), keras.layers.Reshape((2, 2, 1)),
                                  keras.layers.Conv2D(3, 2, padding="same"),
                                  keras.layers.BatchNormalization(), keras.layers.Flatten(),
                                  keras.layers.Dense(2)])
        """,
        "x",
        "model.compile('sgd', 'mse')",
    ),
    "mixed-precision": (
        """
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, dtype="mixed_float16"),
                                  keras.layers.Dense(2)])
        """,
        "x",
        "model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), 'mse')",
    ),
    "own-optimizer": (
        """
        class Late(keras.optimizers.SGD):
            def build(self, variables):
                super().build(variables)
                self.mean = [self.add_variable_from_reference(v, "mean") for v in variables]
                self.late = {}  # variables that are made in the first step

            def update_step(self, gradient, variable, rate):
                at = self._get_variable_index(variable)
                if at not in self.late:
                    self.late[at] = self.add_variable(shape=variable.shape, name=f"late_{at}")
                self.assign(self.mean[at], 0.9 * self.mean[at] + 0.1 * gradient)
                self.assign_add(self.late[at], self.mean[at])
                self.assign_sub(variable, 0.1 * self.late[at])

        model = keras.Sequential([keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(2)])
        """,
        "x",
        "model.compile(Late(), 'mse')",
    ),
    "accumulation": (
        "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])",
        "x",
        "model.compile(keras.optimizers.Adam(gradient_accumulation_steps=2), 'mse')",
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_script_that_calls_model_fit_is_loaded(tmp_path, kind):
    model, inputs, compiled = MODELS[kind]
    lines = (textwrap.dedent(model), f"inputs = {inputs}", compiled, "model.jit_compile = False")
    step = assert_same(script(tmp_path, "\n".join([*lines, FIT])))
    assert step.trainable
    assert step.iterator


def test_steps_per_execution_is_reduced_to_single_steps(tmp_path):
    model, _, _ = MODELS["dropout"]
    lines = (
        textwrap.dedent(model),
        "model.compile('adam', 'mse', steps_per_execution=4, jit_compile=True)",
        "model.fit(x, y, batch_size=8, verbose=0)",
    )
    step = load(source_of(script(tmp_path, "\n".join(lines))))
    assert not any("While" in node.op for node in step.graph_def.node)
    assert step.losses
    assert step.compiled


LOOP = """
weight = tf.Variable(tf.ones((4, 2)), name="weight")
optimizer = keras.optimizers.Adam(0.1)

@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weight - y) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
    return loss

for i in range(6):
    losses.append(train_step(x[8 * i:8 * i + 8], y[8 * i:8 * i + 8]))
"""


def test_a_script_with_a_custom_loop_is_loaded(tmp_path):
    step = assert_same(script(tmp_path, LOOP))
    assert step.trainable == {"weight"}
    assert len(step.batches) == 6
    assert not step.compiled


def test_the_step_is_for_the_batches_that_come_often_not_for_one_that_builds_the_model(tmp_path):
    loop = LOOP.replace("range(6)", "[0] * 99").replace("\nfor", "\ntrain_step(x[:1], y[:1])\nfor")
    step = load(source_of(script(tmp_path, loop)))
    assert step.batch_shapes == ((8, 4), (8, 2))
    assert len(step.batches) == 8


def test_a_step_for_batches_of_any_size_is_for_the_most_common_one(tmp_path):
    signature = "[tf.TensorSpec((None, 4)), tf.TensorSpec((None, 2))]"
    loop = LOOP.replace("@tf.function", f"@tf.function(input_signature={signature})")
    loop = loop.replace("range(6)", "[0, 0, 5] * 5").replace(
        "8 * i:8 * i + 8", "8 * i:min(8 * i + 8, 43)"
    )
    step = load(source_of(script(tmp_path, loop)))
    assert [batch[0].shape for batch in step.batches] == [(8, 4)] * 8
    assert step.batch_shapes == ((8, 4), (8, 2))


ONE_REPLICA = """
strategy = tf.distribute.MirroredStrategy(["CPU:0"])
with strategy.scope():
    weight = tf.Variable(tf.ones((4, 2)), name="weight")
    optimizer = keras.optimizers.SGD(0.1)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(7)  # the last one is smaller
batches = iter(strategy.experimental_distribute_dataset(data))

def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weight - y) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
    return loss

@tf.function
def train_step(batches):
    return strategy.reduce("SUM", strategy.run(step, args=next(batches)), axis=None)

for _ in range(6):
    train_step(batches)
"""


def test_a_strategy_with_one_replica_is_taken(tmp_path):
    step = load(source_of(script(tmp_path, ONE_REPLICA)))
    assert step.trainable == {"weight"}
    assert step.batch_shapes[0] == (7, 4)


@pytest.mark.parametrize(
    "asked", ["@tf.function(jit_compile=True)", "tf.config.optimizer.set_jit(True)\n@tf.function"]
)
def test_a_function_that_xla_is_to_compile_is_recognised(tmp_path, asked):
    try:
        assert load(source_of(script(tmp_path, LOOP.replace("@tf.function", asked)))).compiled
    finally:
        tf.config.optimizer.set_jit(False)


def test_a_script_sees_its_arguments_folder_and_name(tmp_path):
    (tmp_path / "neighbour.py").write_text("n = 3")
    path = script(
        tmp_path,
        """
        import sys
        from neighbour import n
        assert __name__ == "__main__" and sys.argv[1:] == ["--rate", "2"] and n == 3
        """
        + textwrap.indent(LOOP, " " * 8),
    )
    assert load(source_of(path, arguments=["--rate", "2"])).losses


def test_a_module_is_loaded(tmp_path, monkeypatch):
    (tmp_path / "some_package").mkdir()
    script(tmp_path / "some_package", LOOP)
    monkeypatch.chdir(tmp_path)
    step = load(source_of("some_package.train"))
    assert (step.name, len(step.batches)) == ("some_package.train", 6)


def test_a_script_that_catches_every_exception_is_still_ended(tmp_path):
    text = LOOP.replace("range(6)", "range(100)").replace(
        "    losses.append(train_step(x[8 * i:8 * i + 8], y[8 * i:8 * i + 8]))",
        "    try:\n        train_step(x[:8], y[:8])\n    except Exception:\n        pass",
    )
    assert len(load(source_of(script(tmp_path, text))).batches) == 8


# Models that cannot be loaded are explained in one line


def refusal(path, **options):
    with pytest.raises(LoadError) as caught:
        load(source_of(str(path), **options))
    message = str(caught.value)
    assert "\n" not in message
    return message


EAGER = """
for i in range(100):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight ** 2)
    weight.assign_sub(tape.gradient(loss, weight))
"""


APART = """
weight = tf.Variable(1.0)
@tf.function
def gradients():
    with tf.GradientTape() as tape:
        loss = weight * weight
    return tape.gradient(loss, weight)
for _ in range(20):
    weight.assign_sub(0.1 * gradients())
"""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("print('nothing')", "train: it ended without training.*open the script that trains"),
        ("weight = tf.Variable(1.0)\n" + EAGER, r"line 16: gradients are taken eagerly.*@tf.func"),
        (
            "1 / 0",
            r"train\.py, line 11: .* ZeroDivisionError: division by zero; correct the script",
        ),
        ("import no_such_thing", "line 11: it needs the module 'no_such_thing'.*install it"),
        ("raise SystemExit(0)", r"line 11: the script ended before it trained;"),
        ("raise SystemExit('no data')", r"before it trained \(no data\)"),
        (
            "import argparse\nargparse.ArgumentParser().parse_args(['--wrong'])",
            r"line 12: the script refused its arguments \(given: --a 1\)",
        ),
        (APART, r"line 19: gradients are taken in a tf\.function, but applied outside of it"),
        (
            "@tf.function(input_signature=[tf.TensorSpec([None])])\n"
            "def check(a):\n    return a + tf.ones(3)\ncheck(tf.ones(2))",
            r"line 14: it failed before it trained: InvalidArgumentError: .*\[3\]; correct",
        ),
        ("def broken(:", r"SyntaxError: .*correct the script"),
        (
            "with tf.Graph().as_default(), tf.compat.v1.Session() as s:\n    s.run(tf.constant(1))",
            "no call of a tf.function or a session that takes gradients",
        ),
    ],
)
def test_a_script_that_never_trains_is_explained(tmp_path, capsys, text, complaint):
    path = script(tmp_path, text)
    with pytest.raises(LoadError, match=complaint) as caught:
        load(source_of(path, arguments=["--a", "1"]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "printed"),
    [("print('no data', file=sys.stderr); 1 / 0", True), ("print('nothing')", False)],
)
def test_the_output_of_a_script_that_fails_is_shown(tmp_path, text, printed):
    with pytest.raises(LoadError) as caught:
        load(source_of(script(tmp_path, f"import sys\n{text}")))
    assert caught.value.printed is printed


@pytest.mark.parametrize(
    "error", ["MemoryError()", "tf.errors.ResourceExhaustedError(0, 0, 'OOM')"]
)
def test_running_out_of_memory_is_not_blamed_on_the_script(tmp_path, error):
    with pytest.raises((MemoryError, tf.errors.ResourceExhaustedError)):
        load(source_of(script(tmp_path, f"raise {error}")))


def test_a_failing_script_shows_only_its_own_traceback(tmp_path, capsys):
    path = script(tmp_path, "def deep():\n    1 / 0\ndeep()")
    assert "train.py, line 12" in refusal(path)
    stderr = capsys.readouterr().err
    assert "in deep" in stderr
    assert "scripts.py" not in stderr
    assert "runpy" not in stderr


def test_code_that_cannot_be_captured_is_reported_with_its_line(tmp_path):
    text = LOOP.replace(
        "loss = tf", "loss = tf.cast(table.lookup(tf.constant(1)), tf.float32) * tf"
    ).replace(
        "optimizer =",
        "table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)\n"
        "optimizer =",
    )
    assert "train.py, line 24: the training step uses a lookup table" in refusal(
        script(tmp_path, text)
    )


def test_a_training_loop_inside_a_function_is_explained(tmp_path):
    text = LOOP.replace(
        "for i in range(6):\n    losses.append(train_step(x[8 * i:8 * i + 8], y[8 * i:8 * i + 8]))",
        "@tf.function\ndef train():\n    for _ in tf.range(6):\n        train_step(x, y)\ntrain()",
    )
    assert "call it once for each batch" in refusal(script(tmp_path, text))


def test_a_model_that_runs_eagerly_is_explained(tmp_path):
    model, _, _ = MODELS["dropout"]
    lines = "model.compile('adam', 'mse', run_eagerly=True)\nmodel.fit(x, y, epochs=9, verbose=0)"
    message = refusal(script(tmp_path, textwrap.dedent(model) + lines))
    assert "leave out run_eagerly=True" in message


def test_other_variables_may_first_be_fitted_eagerly(tmp_path):
    before = "latent = tf.Variable(1.0)\n" + EAGER.replace("weight", "latent")
    step = load(source_of(script(tmp_path, before + LOOP)))
    assert step.function.startswith("train_step")


@pytest.mark.parametrize(
    ("before", "options"),
    [
        ("tf.profiler.experimental.start('events')", ""),
        ("", ", callbacks=[keras.callbacks.TensorBoard('events', profile_batch=1)]"),
    ],
)
def test_no_profiler_of_a_script_is_left(tmp_path, monkeypatch, before, options):
    monkeypatch.chdir(tmp_path)
    model, _, _ = MODELS["dropout"]
    lines = f"{before}\nmodel.compile('adam', 'mse')\nmodel.fit(x, y, verbose=0{options})"
    load(source_of(script(tmp_path, textwrap.dedent(model) + lines)))
    tf.profiler.experimental.start(str(tmp_path))
    tf.profiler.experimental.stop(save=False)


@pytest.mark.parametrize("decorator", ["", "@tf.function"])
def test_gradients_after_which_nothing_is_updated_are_no_training(tmp_path, decorator):
    """They show what an input does, or how a model is at the start."""
    before = f"""
other = tf.Variable(2.0)
{decorator}
def slopes(rows):
    with tf.GradientTape() as tape:
        tape.watch(rows)
        found = tf.reduce_sum(rows * weight)
    return tape.gradient(found, [rows, weight])
weight = tf.Variable(1.0)
for _ in range(12):
    slopes(tf.ones((1, 4)))
    other.assign_add(1.0)
"""
    step = load(source_of(script(tmp_path, before + LOOP)))
    assert step.function.startswith("train_step")


def test_a_real_training_goes_on_from_its_backup():
    """Only a script that is measured begins anew; a plan is applied to real training."""
    with plain_keras(lambda _: None):
        assert keras.callbacks.BackupAndRestore("backup").backup_dir == "backup"


# Saved Keras models


def small_model(**options):
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(6), keras.layers.Dense(2, activation="softmax")]
    )
    if options:
        model.compile(**options)
    return model


@pytest.fixture
def keras_file(tmp_path):
    path = tmp_path / "model.keras"
    small_model().save(path)
    return path


def fitted_losses(path, step, loss, optimizer):
    """Return the losses of ``model.fit`` on the batches of the step."""
    model = keras.saving.load_model(path, compile=False)
    model.compile(optimizer, loss, jit_compile=False)
    x, y = (np.concatenate(parts) for parts in zip(*step.batches, strict=True))
    losses = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])
    )
    size = len(step.batches[0][0])
    model.fit(x, y, batch_size=size, shuffle=False, verbose=0, callbacks=[watch])
    return losses[:N_STEPS]


@pytest.mark.parametrize(
    "loss", ["sparse_categorical_crossentropy", "categorical_crossentropy", "mean_squared_error"]
)
def test_a_keras_file_trains_with_a_given_loss(keras_file, loss):
    step = load(source_of(str(keras_file), loss=loss, optimizer="adam", batch_size=5))
    assert step.batches[0][0].shape == (5, 4)
    expected = fitted_losses(keras_file, step, loss, "adam")
    np.testing.assert_array_equal(step_losses(step), expected)


def test_a_compiled_keras_file_trains_with_its_saved_settings(tmp_path):
    path = tmp_path / "model.h5"
    model = small_model(optimizer="adam", loss="categorical_crossentropy")
    model.save(path)
    step = load(source_of(str(path)))
    expected = fitted_losses(path, step, "categorical_crossentropy", "adam")
    np.testing.assert_array_equal(step_losses(step), expected)


def test_a_keras_model_with_several_inputs_and_outputs_trains(tmp_path):
    keras.utils.clear_session()
    words, rest = keras.Input((None,), dtype="int32", name="words"), keras.Input((3,))
    mean = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(2, 3)(words))
    hidden = keras.layers.add([mean, rest])
    outputs = [keras.layers.Dense(1)(hidden), keras.layers.Dense(2)(hidden)]
    path = tmp_path / "model.keras"
    keras.Model([words, rest], outputs).save(path)
    step = load(source_of(str(path), loss="mse", optimizer="sgd"))
    assert len(step.batches[0]) == 4
    assert np.isfinite(step_losses(step)).all()


def test_keras_files_that_cannot_train_are_explained(tmp_path, keras_file):
    assert "saved without loss and optimiser" in refusal(keras_file)
    assert "nonsense" in refusal(keras_file, loss="nonsense", optimizer="adam")
    broken = tmp_path / "broken.h5"
    broken.write_bytes(b"no HDF5")
    assert "Keras cannot read it" in refusal(broken)


# SavedModels


@pytest.fixture
def exported(tmp_path):
    path = tmp_path / "exported"
    small_model().export(path, verbose=False)
    return path


def test_a_saved_model_runs_inference(exported):
    step = load(source_of(str(exported)))
    serve = tf.saved_model.load(exported).signatures["serving_default"]
    assert not step.losses
    assert not step.targets
    with OpenStep(step) as alone:
        for batch in step.batches[:N_STEPS]:
            (expected,) = serve(tf.constant(batch[0])).values()
            np.testing.assert_array_equal(alone.run()[0], expected)


def test_a_saved_model_without_a_training_step_is_given_one(exported):
    loss = "sparse_categorical_crossentropy"
    step = load(source_of(str(exported), loss=loss, optimizer="adam"))
    loaded = tf.saved_model.load(exported)
    serve = loaded.signatures["serving_default"]
    variables = serve.graph.trainable_variables
    optimizer = keras.optimizers.Adam()
    optimizer.build(variables)
    loss_of = keras.losses.get(loss)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            (output,) = serve(x).values()
            value = tf.reduce_mean(loss_of(y, output))
        optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
        return value

    expected = [train_step(*map(tf.constant, batch)) for batch in step.batches[:N_STEPS]]
    np.testing.assert_array_equal(step_losses(step), expected)
    assert len(step.trainable) == 4


class Trainer(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(tf.ones((4, 2)), name="weight")

    @tf.function(input_signature=[tf.TensorSpec((None, 4)), tf.TensorSpec((None, 2))])
    def train(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ self.weight - y) ** 2)
        self.weight.assign_sub(0.1 * tape.gradient(loss, self.weight))
        return {"loss": loss}


def test_a_saved_model_trains_by_its_own_signature(tmp_path):
    trainer = Trainer()
    tf.saved_model.save(trainer, str(tmp_path), signatures={"train": trainer.train})
    step = load(source_of(str(tmp_path)))
    expected = [trainer.train(*map(tf.constant, b))["loss"] for b in step.batches[:N_STEPS]]
    np.testing.assert_array_equal(step_losses(step), expected)
    assert step.targets


def test_a_saved_model_with_an_impossible_input_is_refused_in_one_line(tmp_path):
    module = tf.Module()
    module.serve = tf.function(
        lambda x: {"y": x}, input_signature=[tf.TensorSpec((None, 1 << 40, 1 << 40), name="x")]
    )
    tf.saved_model.save(module, str(tmp_path), signatures=module.serve)
    assert "too many values for a sample batch" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["saved_model.pb", "variables/variables.index"])
def test_a_named_pipe_in_a_saved_model_is_refused(tmp_path, name):
    """TensorFlow would wait for ever for somebody to write to it."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(FileError, match=f"{name}: this is a named pipe"):
        load(Source(str(tmp_path), "saved-model"))


def test_signatures_that_are_none_are_refused_in_one_line(tmp_path, monkeypatch):
    odd = types.SimpleNamespace(signatures=3)
    monkeypatch.setattr(tf.saved_model, "load", lambda path: odd)
    (tmp_path / "saved_model.pb").write_bytes(b"")
    assert "TensorFlow cannot read it: " in refusal(tmp_path)


def test_the_chosen_signature_is_reported(tmp_path):
    trainer = Trainer()
    forward = tf.function(lambda x: {"y": x @ trainer.weight})
    serve = forward.get_concrete_function(tf.TensorSpec((None, 4), name="x"))
    signatures = {"serving_default": serve, "train": trainer.train}
    tf.saved_model.save(trainer, str(tmp_path), signatures=signatures)
    step = load(source_of(str(tmp_path)))
    assert (step.function, step.left_out) == ("serving_default", ("train",))
    assert load(source_of(str(tmp_path), signature="train")).left_out == ()


def test_saved_models_that_cannot_be_used_are_explained(tmp_path, exported):
    assert "no signature 'other'; choose one of" in refusal(exported, signature="other")
    bare = tmp_path / "bare"
    tf.saved_model.save(tf.Module(), str(bare))
    assert "it has no signature" in refusal(bare)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "saved_model.pb").write_bytes(b"no protobuf")
    assert "TensorFlow cannot read it" in refusal(broken)


def test_keras_traces_its_step_once_where_only_the_optimiser_lacks_variables():
    traced = []

    class Watched(keras.layers.Layer):
        def call(self, x):
            traced.append(x)
            return x

    model = keras.Sequential([keras.Input((2,)), Watched(), keras.layers.Dense(1)])
    with plain_keras(lambda _: None):
        model.compile("adam", "mse")
        traced.clear()
        model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
    assert len(traced) == 1


class Lazy(keras.Model):
    """Counts as built before its layers have variables."""

    def __init__(self):
        super().__init__()
        self.first, self.last = keras.layers.Dense(2), keras.layers.Dense(1)
        self.built = True

    def call(self, x):
        return self.last(self.first(x))


class Thaw(keras.callbacks.Callback):
    """Lets a layer train after Keras has made its training function."""

    def on_train_begin(self, logs=None):
        self.model.layers[0].trainable = True


def frozen():
    layers = [keras.layers.Dense(2, trainable=False), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((2,)), *layers])


def scaled_nadam():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Nadam())


@pytest.mark.parametrize(
    ("make_model", "make_optimizer"), [(Lazy, scaled_nadam), (frozen, keras.optimizers.Nadam)]
)
def test_an_optimiser_has_the_variables_it_would_have_without_us(make_model, make_optimizer):
    def trained():
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        model, optimizer = make_model(), make_optimizer()
        model.compile(optimizer, "mse", jit_compile=False)
        model.fit(np.ones((4, 2)), np.ones((4, 1)), callbacks=[Thaw()], verbose=0)
        variables = [*model.weights, *optimizer.variables]
        return {v.path: np.asarray(v.value).tolist() for v in variables}

    usual = trained()
    with plain_keras(lambda _: None):
        assert trained() == usual


def test_the_step_of_a_second_model_is_named_as_left_out_but_not_another_batch_size(tmp_path):
    """Keras calls the steps of all models by the same name."""
    path = script(
        tmp_path,
        """
        models = [keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]) for _ in range(2)]
        for model in models:
            model.compile("sgd", "mse")
        for _ in range(3):
            models[0].train_on_batch(x[:8], y[:8])
            models[0].train_on_batch(x[:6], y[:6])
            models[1].train_on_batch(x[:8], y[:8])
        """,
    )
    (left_out,) = load(source_of(path)).left_out
    line = 1 + Path(path).read_text().splitlines().index(
        "    models[1].train_on_batch(x[:8], y[:8])"
    )
    assert left_out.endswith(f"in train.py, line {line}")
