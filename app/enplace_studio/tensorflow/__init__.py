"""TensorFlow from the studio: opening models, profiling them, running plans on this machine.

TensorFlow itself lives in a worker process; nothing here imports it.
"""
