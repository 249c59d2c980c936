"""The Enplace studio: the Qt application over the `enplace` library."""
