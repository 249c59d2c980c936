"""A SavedModel with a plan's devices runs where planned, however it is loaded."""

import contextlib
import shutil
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from enplace.errors import EnplaceError
from enplace.frameworks.registry import exporters, why_no_export
from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow.devices import parse_devices
from enplace.frameworks.tensorflow.measure.profile import graph_profile
from enplace.frameworks.tensorflow.open.load import load
from enplace.frameworks.tensorflow.placed_saved_model import placed_saved_model
from enplace.machine import simulate
from enplace.processes.wire import Message
from enplace.values.problem import Problem
from enplace.values.result import Result
from steps import scattered_plan

X = np.ones((3, 4), "float32")


class Served(tf.Module):
    """Two signatures that share weights and a table of words."""

    def __init__(self, words):
        self.weights = [tf.Variable(tf.ones((4, 4)) / (i + 2), name=f"w{i}") for i in range(4)]
        file = tf.lookup.TextFileInitializer(
            words,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        )
        self.table = tf.lookup.StaticHashTable(file, -1)

    @tf.function
    def layer(self, x, i):
        return tf.tanh(x @ self.weights[i])

    @tf.function(input_signature=[tf.TensorSpec((None, 4), name="x")])
    def serve(self, x):
        for i in range(4):
            x = self.layer(x, i)
        x = tf.cond(tf.reduce_sum(x) > 0, lambda: x @ self.weights[0], lambda: -x)
        return {"y": x, "sum": tf.reduce_sum(x)}

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="word")])
    def look_up(self, word):
        return {"number": self.table.lookup(word)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A SavedModel, its problem on two CPUs, and a plan with ops on both."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "words.txt").write_text("a\nb\n")
    model = Served(str(folder / "words.txt"))
    signatures = {"serving_default": model.serve, "words": model.look_up}
    tf.saved_model.save(model, str(folder / "model"), signatures=signatures)
    devices = parse_devices("cpu:2")
    source = source_of(folder / "model")
    problem = Problem(graph_profile(load(source), devices), devices.cluster)
    plan = scattered_plan(problem, seed=3, policy="strict")
    content = placed_saved_model(source, problem, plan)
    shutil.copytree(folder / "model", folder / "placed")
    (folder / "placed" / "saved_model.pb").write_bytes(content)
    return folder, source, problem, plan


@contextlib.contextmanager
def served(folder):
    """Load a SavedModel as a server does, with two CPUs; give a function that asks a signature."""
    config = tf.compat.v1.ConfigProto(device_count={"CPU": 2}, allow_soft_placement=False)
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # it would fuse ops
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        model = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))

        def ask(signature, value, metadata=None):
            meta = model.signature_def[signature]
            (given,) = meta.inputs.values()
            wanted = {name: each.name for name, each in meta.outputs.items()}
            options = tf.compat.v1.RunOptions(trace_level=3 if metadata is not None else 0)
            return session.run(wanted, {given.name: value}, options, metadata)

        yield ask


def test_a_server_runs_every_op_where_planned(saved):
    folder, _, problem, plan = saved
    metadata = tf.compat.v1.RunMetadata()
    with served(folder / "model") as ask:
        expected = ask("serving_default", X)
    with served(folder / "placed") as ask:
        found = ask("serving_default", X, metadata)
        assert ask("words", ["b", "a", "c"])["number"].tolist() == [1, 0, -1]
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    ran = {
        row.node_name: device.device.rpartition("device:")[2]
        for device in metadata.step_stats.dev_stats
        for row in device.node_stats
    }
    names = [device.name for device in problem.cluster.devices]
    planned = {
        op: names[d] for op, d in zip(problem.profile.op_names, plan.device.tolist(), strict=True)
    }
    types = dict(zip(problem.profile.op_names, problem.profile.op_types, strict=True))
    left_out = "Const", "Placeholder"
    checked = {op for op in planned.keys() & ran.keys() if types[op] not in left_out}
    assert {types[op] for op in checked} >= {"MatMul", "Tanh", "ReadVariableOp"}
    assert {op: ran[op] for op in checked} == {op: planned[op] for op in checked}
    assert len({ran[op] for op in checked}) == 2


def test_tensorflow_2_loads_it_with_the_same_results(saved):
    folder, *_ = saved
    before, after = (tf.saved_model.load(str(folder / n)) for n in ("model", "placed"))
    for loaded in (before, after):
        loaded.found = loaded.signatures["serving_default"](tf.constant(X))
    for name, value in before.found.items():
        np.testing.assert_array_equal(after.found[name], value)
    np.testing.assert_array_equal(after.serve(tf.constant(X))["y"], before.found["y"])


def test_a_plan_for_another_signature_is_refused(saved):
    folder, _, problem, plan = saved
    other = source_of(folder / "model", signature="words")
    with pytest.raises(EnplaceError, match="another graph"):
        placed_saved_model(other, problem, plan)


def test_a_model_that_nobody_trusts_is_not_opened(saved, tmp_path):
    _, source, problem, plan = saved
    measured = replace(problem.profile.measured, source=source.to_json())
    found = Problem(replace(problem.profile, measured=measured), problem.cluster)
    with pytest.raises(EnplaceError, match="add --trust"):
        exporters()["saved-model"].write_to(tmp_path / "new", Result(simulate(found, plan)))


def test_each_export_says_which_models_it_is_for(saved):
    _, source, problem, plan = saved
    measured = problem.profile.measured

    def why(form, **said):
        described = {**source.to_json(), **said}
        profile = replace(problem.profile, measured=replace(measured, source=described))
        found = Problem(profile, problem.cluster)
        return why_no_export(form, Result(simulate(found, plan)))

    assert why("saved-model") == ""
    assert "training step" in why("saved-model", loss="mse", optimizer="sgd")
    assert "--format saved-model" in why("python")
    assert "not one of a SavedModel" in why("saved-model", kind="script")
    assert why("python", kind="script") == ""


def test_the_copy_has_all_else_of_the_model(saved, tmp_path, monkeypatch):
    folder, source, problem, plan = saved
    measured = replace(problem.profile.measured, source=source.to_json())
    found = Problem(replace(problem.profile, measured=measured), problem.cluster)
    content = np.frombuffer((folder / "placed" / "saved_model.pb").read_bytes(), np.uint8)
    monkeypatch.setattr("enplace.frameworks.trust.may_run", lambda *_, **__: True)
    answer = Message("done", {}, {"saved_model": content})
    monkeypatch.setattr("enplace.frameworks.jobs.do_work", lambda *_: answer)
    (tmp_path / "new").mkdir()
    notes = exporters()["saved-model"].write_to(tmp_path / "new", Result(simulate(found, plan)))
    assert "needs the plan's devices" in notes[0]
    assert [each.name for each in tmp_path.iterdir()] == ["new"]
    with served(tmp_path / "new") as ask:
        assert ask("words", ["b"])["number"].tolist() == [1]
    assert not (tmp_path / "new" / "fingerprint.pb").exists()
