"""Everything that depends on a framework; today that is TensorFlow."""
