"""Transformer: encoder and decoder layers of multi-head attention; Adam.

Pesto's settings: --layers 6 --heads 16 --hidden 2048 (or 10, 8, 1024) --length 64 --batch 32
--vocabulary 32000
"""

import keras
import tensorflow as tf

from attention import Attention, FeedForward, embed
from training import cross_entropy, options, tokens, train


class EncoderLayer(tf.Module):
    """Attention within the sentence, and a feed-forward block."""

    def __init__(self, hidden, heads, name):
        super().__init__(name=name)
        self.attention = Attention(hidden, heads)
        self.feed_forward = FeedForward(hidden)

    def __call__(self, x):
        with tf.name_scope(self.name):
            return self.feed_forward(self.attention(x, x))


class DecoderLayer(tf.Module):
    """Attention to the words so far and to the encoder's, and a feed-forward block."""

    def __init__(self, hidden, heads, name):
        super().__init__(name=name)
        self.attention = Attention(hidden, heads)
        self.reading = Attention(hidden, heads, "reading")
        self.feed_forward = FeedForward(hidden)

    def __call__(self, x, memory):
        with tf.name_scope(self.name):
            x = self.attention(x, x, causal=True)
            return self.feed_forward(self.reading(x, memory))


class Transformer(tf.Module):
    """Predicts the sentence in the other language."""

    def __init__(self, given):
        super().__init__(name="transformer")
        hidden, heads = given.hidden, given.heads
        size = (given.vocabulary, hidden)
        self.embedding = tf.Variable(tf.random.normal(size, stddev=0.02), name="embedding")
        numbers = range(given.layers)
        self.encoder = [EncoderLayer(hidden, heads, f"encoder_{i}") for i in numbers]
        self.decoder = [DecoderLayer(hidden, heads, f"decoder_{i}") for i in numbers]

    def loss(self, source, target):
        """Return the mean loss over the words of the target except the first."""
        with tf.name_scope("embedding"):
            memory, x = embed(self.embedding, source), embed(self.embedding, target[:, :-1])
        for layer in self.encoder:
            memory = layer(memory)
        for layer in self.decoder:
            x = layer(x, memory)
        with tf.name_scope("softmax"):
            logits = tf.tensordot(x, tf.transpose(self.embedding), 1)
            return cross_entropy(logits, target[:, 1:])


if __name__ == "__main__":
    given = options(__doc__, batch=4, layers=2, heads=4, hidden=64, length=12, vocabulary=500)
    model = Transformer(given)
    source = tokens(given.batch, given.length, given.vocabulary)
    target = tokens(given.batch, given.length + 1, given.vocabulary)
    optimizer = keras.optimizers.Adam(1e-3)
    train(model.loss, model, optimizer, [source, target], given.train_steps)
