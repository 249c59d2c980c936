"""Everything that knows TensorFlow.

``framework`` is what the rest of Enplace sees of it. All other modules import TensorFlow, so they
run only in workers, and in a training script that calls :func:`enplace.apply`.
"""
