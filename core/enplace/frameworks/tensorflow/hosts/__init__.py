"""TensorFlow's servers on several hosts."""
