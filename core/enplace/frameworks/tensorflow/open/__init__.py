"""Open a model: a script, a saved model, or a graph of TensorFlow 1."""
