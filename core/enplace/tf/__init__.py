"""All that needs TensorFlow: it is imported in worker processes only, never by the studio."""
