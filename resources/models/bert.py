"""BERT, predicting hidden words: a stack of encoder layers; Adam with weight decay and clipping.

BERT-Large: --layers 24 --heads 16 --hidden 1024 --length 64 --batch 16 --vocabulary 30522
"""

import keras
import tensorflow as tf

from attention import Dense, Normalise, embed
from training import cross_entropy, options, tokens, train
from transformer import EncoderLayer

HIDDEN_WORDS = 4


class Bert(tf.Module):
    """Predicts the first words of a sentence, which are hidden from it."""

    def __init__(self, given):
        super().__init__(name="bert")
        size = (given.vocabulary, given.hidden)
        self.embedding = tf.Variable(tf.random.normal(size, stddev=0.02), name="embedding")
        self.normalise = Normalise(given.hidden, "embedding_norm")
        self.layers = [
            EncoderLayer(given.hidden, given.heads, f"layer_{i}") for i in range(given.layers)
        ]
        self.head = Dense(given.hidden, given.hidden, "head")
        self.bias = tf.Variable(tf.zeros(given.vocabulary), name="output_bias")

    def loss(self, words):
        """Return the mean loss over the hidden words."""
        with tf.name_scope("embedding"):
            seen = tf.concat([tf.zeros_like(words[:, :HIDDEN_WORDS]), words[:, HIDDEN_WORDS:]], 1)
            x = self.normalise(embed(self.embedding, seen))
        for layer in self.layers:
            x = layer(x)
        with tf.name_scope("guess"):
            guess = tf.nn.gelu(self.head(x[:, :HIDDEN_WORDS]))
            logits = tf.tensordot(guess, tf.transpose(self.embedding), 1) + self.bias
            return cross_entropy(logits, words[:, :HIDDEN_WORDS])


if __name__ == "__main__":
    given = options(__doc__, batch=4, layers=2, heads=4, hidden=64, length=16, vocabulary=500)
    model = Bert(given)
    words = tokens(given.batch, given.length, given.vocabulary)
    optimizer = keras.optimizers.AdamW(1e-4, weight_decay=0.01, global_clipnorm=1.0)
    train(model.loss, model, optimizer, [words], given.train_steps)
