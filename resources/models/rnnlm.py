"""RNN language model: embedding, unrolled LSTM layers, softmax; clipped SGD.

Pesto's settings: --layers 2 (or 4) --hidden 2048 --length 35 --batch 128 --vocabulary 10000
"""

import keras
import tensorflow as tf

from lstm import LSTM, unrolled
from training import cross_entropy, options, tokens, train


class LanguageModel(tf.Module):
    """Predicts each next word."""

    def __init__(self, given):
        super().__init__(name="rnnlm")
        size = (given.vocabulary, given.hidden)
        self.embedding = tf.Variable(tf.random.normal(size, stddev=0.1), name="embedding")
        self.layers = [LSTM(given.hidden, given.hidden, f"lstm_{i}") for i in range(given.layers)]
        self.softmax = tf.Variable(tf.random.normal(size[::-1], stddev=0.1), name="softmax")

    def loss(self, words):
        """Return the mean loss over all words except the first."""
        with tf.name_scope("embedding"):
            xs = tf.unstack(tf.gather(self.embedding, words[:, :-1]), axis=1)
        xs, _ = unrolled(self.layers, xs, drop=0.5)
        with tf.name_scope("softmax"):
            logits = tf.matmul(tf.concat(xs, 0), self.softmax)
            return cross_entropy(logits, tf.reshape(tf.transpose(words[:, 1:]), [-1]))


if __name__ == "__main__":
    given = options(__doc__, batch=16, layers=2, hidden=64, length=10, vocabulary=1000)
    model = LanguageModel(given)
    words = tokens(given.batch, given.length + 1, given.vocabulary)
    optimizer = keras.optimizers.SGD(0.5, global_clipnorm=5.0)
    train(model.loss, model, optimizer, [words], given.train_steps)
