"""Neural machine translation: unrolled LSTM encoder and decoder with Luong attention; clipped SGD.

Pesto's settings: --layers 2 --hidden 1024 --length 25 (or 50) --batch 128 --vocabulary 32000
"""

import keras
import tensorflow as tf

from lstm import LSTM, unrolled
from training import cross_entropy, options, tokens, train


class Translator(tf.Module):
    """Predicts the sentence in the other language, word by word."""

    def __init__(self, given):
        super().__init__(name="nmt")
        hidden = given.hidden
        size = (given.vocabulary, hidden)
        self.source = tf.Variable(tf.random.normal(size, stddev=0.1), name="source_embedding")
        self.target = tf.Variable(tf.random.normal(size, stddev=0.1), name="target_embedding")
        self.encoder = [LSTM(hidden, hidden, f"encoder_{i}") for i in range(given.layers)]
        self.decoder = [LSTM(hidden, hidden, f"decoder_{i}") for i in range(given.layers)]
        self.mixing = tf.Variable(tf.random.normal((2 * hidden, hidden), stddev=0.1), name="mixing")
        self.softmax = tf.Variable(tf.random.normal(size[::-1], stddev=0.1), name="softmax")

    def loss(self, source, target):
        """Return the mean loss over the words of the target except the first."""
        with tf.name_scope("embedding"):
            sources = tf.unstack(tf.gather(self.source, source), axis=1)
            targets = tf.unstack(tf.gather(self.target, target[:, :-1]), axis=1)
        memory, states = unrolled(self.encoder, sources, drop=0.2)
        outputs, _ = unrolled(self.decoder, targets, states, drop=0.2)
        with tf.name_scope("attention"):
            keys = tf.stack(memory, 1)
            mixed = [self.attend(h, keys, f"t{step}") for step, h in enumerate(outputs)]
        with tf.name_scope("softmax"):
            logits = tf.matmul(tf.concat(mixed, 0), self.softmax)
            return cross_entropy(logits, tf.reshape(tf.transpose(target[:, 1:]), [-1]))

    def attend(self, h, keys, scope):
        """Mix the encoder's outputs into an output of the decoder."""
        with tf.name_scope(scope):
            scores = tf.nn.softmax(tf.squeeze(tf.matmul(keys, h[:, :, None]), 2))
            context = tf.reduce_sum(scores[:, :, None] * keys, 1)
            return tf.tanh(tf.matmul(tf.concat([context, h], 1), self.mixing))


if __name__ == "__main__":
    given = options(__doc__, batch=8, layers=2, hidden=48, length=8, vocabulary=500)
    model = Translator(given)
    source = tokens(given.batch, given.length, given.vocabulary)
    target = tokens(given.batch, given.length + 1, given.vocabulary)
    optimizer = keras.optimizers.SGD(0.5, global_clipnorm=5.0)
    train(model.loss, model, optimizer, [source, target], given.train_steps)
