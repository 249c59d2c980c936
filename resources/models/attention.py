"""Multi-head attention and the feed-forward block around it, for BERT and the Transformer."""

import tensorflow as tf


class Dense(tf.Module):
    """A matrix product and a bias."""

    def __init__(self, inputs, units, name):
        super().__init__(name=name)
        self.kernel = tf.Variable(
            tf.random.truncated_normal((inputs, units), stddev=0.02), name="kernel"
        )
        self.bias = tf.Variable(tf.zeros(units), name="bias")

    def __call__(self, x):
        with tf.name_scope(self.name):
            return tf.tensordot(x, self.kernel, 1) + self.bias


class Normalise(tf.Module):
    """Layer normalisation."""

    def __init__(self, units, name="normalise"):
        super().__init__(name=name)
        self.scale = tf.Variable(tf.ones(units), name="scale")
        self.offset = tf.Variable(tf.zeros(units), name="offset")

    def __call__(self, x):
        with tf.name_scope(self.name):
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            return (x - mean) * tf.math.rsqrt(variance + 1e-6) * self.scale + self.offset


class Attention(tf.Module):
    """Multi-head attention with its residual connection."""

    def __init__(self, hidden, heads, name="attention"):
        super().__init__(name=name)
        self.query, self.key, self.value, self.mix = (
            Dense(hidden, hidden, part) for part in ("query", "key", "value", "mix")
        )
        self.normalise = Normalise(hidden)
        self.heads, self.width = heads, hidden // heads

    def __call__(self, x, memory, causal=False):
        with tf.name_scope(self.name):
            query, key, value = self.query(x), self.key(memory), self.value(memory)
            query, key, value = (self.split(part) for part in (query, key, value))
            scores = tf.matmul(query, key, transpose_b=True) * self.width**-0.5
            if causal:
                ahead = 1.0 - tf.linalg.band_part(tf.ones_like(scores[0, 0]), -1, 0)
                scores -= 1e9 * ahead
            mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
            return self.normalise(x + self.mix(tf.reshape(mixed, tf.shape(x))))

    def split(self, x):
        """Give each head its share: (batch, heads, length, width)."""
        shape = tf.concat([tf.shape(x)[:-1], [self.heads, self.width]], 0)
        return tf.transpose(tf.reshape(x, shape), [0, 2, 1, 3])


class FeedForward(tf.Module):
    """Two dense layers with their residual connection."""

    def __init__(self, hidden, name="feed_forward"):
        super().__init__(name=name)
        self.wide = Dense(hidden, 4 * hidden, "wide")
        self.narrow = Dense(4 * hidden, hidden, "narrow")
        self.normalise = Normalise(hidden)

    def __call__(self, x):
        with tf.name_scope(self.name):
            return self.normalise(x + self.narrow(tf.nn.gelu(self.wide(x))))


def embed(table, words):
    """Look words up and add their positions."""
    x = tf.gather(table, words)
    length, hidden = x.shape[1], x.shape[2]
    position = tf.range(length, dtype=tf.float32)[:, None]
    frequency = tf.exp(-9.2 * tf.range(0, hidden, 2, dtype=tf.float32) / hidden)[None]
    waves = tf.concat([tf.sin(position * frequency), tf.cos(position * frequency)], 1)
    return x * hidden**0.5 + waves[None, :, :hidden]
