"""Everything that knows a framework; today that is TensorFlow."""
