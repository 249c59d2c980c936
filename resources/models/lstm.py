"""An LSTM layer as single ops, so that every time step can run on another device."""

import tensorflow as tf


class LSTM(tf.Module):
    """The cell of a layer; called once per time step, it is one ``MatMul`` and a few other ops."""

    def __init__(self, inputs, units, name):
        super().__init__(name=name)
        limit = (6.0 / (inputs + 5 * units)) ** 0.5
        shape = (inputs + units, 4 * units)
        self.kernel = tf.Variable(tf.random.uniform(shape, -limit, limit), name="kernel")
        self.bias = tf.Variable(tf.zeros(4 * units), name="bias")
        self.units = units

    def start(self, batch):
        """Return output and memory before the first step."""
        return tf.zeros((batch, self.units)), tf.zeros((batch, self.units))

    def __call__(self, x, state):
        """Return output and memory after one more step."""
        h, c = state
        gates = tf.matmul(tf.concat([x, h], 1), self.kernel) + self.bias
        i, j, f, o = tf.split(gates, 4, 1)
        c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
        return tf.tanh(c) * tf.sigmoid(o), c


def unrolled(layers, xs, states=None, drop=0.0):
    """Run layers over a list of inputs; return the last layer's outputs and all final states.

    Name scopes are ``lstm_0/t7``: layer and time step.
    """
    states = states or [layer.start(tf.shape(xs[0])[0]) for layer in layers]
    finals = []
    for number, (layer, state) in enumerate(zip(layers, states, strict=True)):
        outputs = []
        for step, x in enumerate(xs):
            with tf.name_scope(f"{layer.name}/t{step}"):
                if drop:
                    x = tf.nn.experimental.stateless_dropout(x, drop, seed=(number, step))
                state = layer(x, state)
                outputs.append(state[0])
        xs = outputs
        finals.append(state)
    return xs, finals
