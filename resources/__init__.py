"""Data that ships with Enplace; read it with `importlib.resources.files("enplace_resources")`."""
