"""A traced function becomes one flat graph with names that every trace repeats."""

import tensorflow as tf

from enplace.frameworks.tensorflow.graph import flatten, node_of


def flat(function, *arguments):
    return flatten(function.get_concrete_function(*arguments))


def ops(graph):
    return [node.op for node in graph.graph_def.node]


def names(graph):
    return [node.name for node in graph.graph_def.node]


def structure(graph):
    return [(node.name, node.op, list(node.input)) for node in graph.graph_def.node]


X = tf.constant([1.0, 2.0])


def nested():
    """Return a function that calls functions, one of them jit-compiled."""
    weight = tf.Variable([3.0, 4.0], name="weight")

    @tf.function
    def scaled(x):
        with tf.name_scope("scaled"):
            return x * weight

    @tf.function(jit_compile=True)
    def summed(x):
        return tf.reduce_sum(x)

    @tf.function
    def outer(x):
        weight.assign_add(scaled(x))
        return summed(scaled(x))

    return outer, weight


def test_calls_are_inlined_even_if_jit_compiled():
    outer, _weight = nested()
    graph = flat(outer, X)
    assert not {"PartitionedCall", "StatefulPartitionedCall"} & set(ops(graph))
    assert ops(graph).count("Sum") == 1
    assert "scaled/mul" in names(graph)
    assert "scaled/mul_1" in names(graph)


def test_another_trace_gives_the_same_names():
    (first, one), (second, other) = nested(), nested()
    assert one is not other
    assert structure(flat(first, X)) == structure(flat(second, X))


def test_captures_are_named_after_their_variables():
    twins = [tf.Variable(float(i), name="twin") for i in range(3)]
    constant = tf.constant(5.0) + 0.0

    @tf.function
    def summed():
        return tf.add_n([*twins, constant])

    assert flat(summed).captures == ("twin", "twin_1", "twin_2", "capture_3")


def test_ops_with_effects_must_run():
    outer, _weight = nested()
    graph = flat(outer, X)
    types = {node.name: node.op for node in graph.graph_def.node}
    assert [types[name] for name in graph.control_outputs] == ["AssignAddVariableOp"]


def test_outputs_are_not_behind_control_edges():
    outer, _weight = nested()
    graph = flat(outer, X)
    types = {node.name: node.op for node in graph.graph_def.node}
    assert [types[node_of(tensor)] for tensor in graph.outputs] == ["Sum"]


def test_the_order_of_effects_is_kept():
    weight = tf.Variable(1.0, name="weight")

    @tf.function
    def twice():
        weight.assign(weight * 2.0)
        weight.assign(weight + 3.0)
        return weight.read_value()

    nodes = {node.name: node for node in flat(twice).graph_def.node}
    second = nodes["AssignVariableOp_1"]
    before = {node_of(tensor) for tensor in nodes[node_of(second.input[1])].input}
    reads = [name for name in before if nodes[name].op == "ReadVariableOp"]
    assert all("^AssignVariableOp" in nodes[name].input for name in reads)


def test_an_identity_of_many_tensors_is_removed():
    variables = [tf.Variable(X, name=f"v{i}") for i in range(2)]

    @tf.function
    def passed():
        tensors = tf.identity_n([variable * 2.0 for variable in variables])
        for variable, tensor in zip(variables, tensors, strict=True):
            variable.assign(tensor)

    graph = flat(passed)
    assert "IdentityN" not in ops(graph)
    inputs = [tuple(node.input) for node in graph.graph_def.node if node.op == "AssignVariableOp"]
    assert [pair[:2] for pair in inputs] == [("v0", "mul"), ("v1", "mul_1")]


def test_devices_set_by_the_script_are_dropped():
    @tf.function
    def placed(x):
        with tf.device("/device:CPU:0"):
            return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 2.0), (0, x))[1]

    graph = flat(placed, X)
    bodies = [node for body in graph.graph_def.library.function for node in body.node_def]
    assert bodies
    assert not any(node.device for node in [*graph.graph_def.node, *bodies])


def test_a_loop_becomes_one_op():
    weight = tf.Variable(2.0, name="weight")

    @tf.function
    def looped(x):
        for _ in tf.range(3):
            x = x * weight
        return x

    graph = flat(looped, X)
    loops = [node for node in graph.graph_def.node if "While" in node.op]
    assert len(loops) == 1
    assert not loops[0].attr["_lower_using_switch_merge"].b
    assert not {"Enter", "Merge"} & set(ops(graph))


def test_unused_arguments_keep_their_position():
    @tf.function
    def second(a, b):
        return b * 2.0

    graph = flat(second, X, X)
    assert graph.arguments == ("a", "b")
    assert {"a", "b"} <= set(names(graph))
