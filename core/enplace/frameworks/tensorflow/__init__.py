"""Everything that depends on TensorFlow.

``framework`` is the interface to the rest of Enplace. All other modules import TensorFlow, so they
run only in workers, and in a training script that calls :func:`enplace.apply`.
"""
