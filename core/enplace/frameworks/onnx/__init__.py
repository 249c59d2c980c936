"""ONNX models: graphs that any framework exports, without measurements.

Only a worker imports this package's modules that need the ``onnx`` library.
"""
