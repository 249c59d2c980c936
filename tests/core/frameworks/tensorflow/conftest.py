"""TensorFlow for tests: on the CPU, quiet, and with graph rewriting off."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import pytest
from tests.core.frameworks.tensorflow.warm import WarmPython

LIBRARIES = (
    # Warnings of TensorFlow, Keras and their imports about each other, none of them ours.
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",
    "ignore:`shuffle=True` was passed:UserWarning",
    "ignore:Skipping variable loading for optimizer:UserWarning",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if "/tests/core/frameworks/tensorflow/" in item.path.as_posix():
            for line in LIBRARIES:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture(autouse=True, scope="session")
def no_rewriting():
    """Turn off graph rewriting: rewritten graphs differ in the last bits."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture(scope="module")
def run_python():
    """A function that runs a script in a process of its own, which has imported TensorFlow."""
    with WarmPython() as warm:
        yield warm.run
