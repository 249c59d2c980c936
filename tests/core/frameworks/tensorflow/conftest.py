"""TensorFlow for tests: on the CPU, quiet, and with graph rewriting off."""

import os

import pytest

from warm_tensorflow import QUIET

os.environ.update(QUIET)

from steps import STYLES, step_of_script

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


@pytest.fixture(scope="session")
def all_steps(no_rewriting, tmp_path_factory):
    """The step of a script in each style."""
    folder = tmp_path_factory.mktemp("scripts")
    return {style: step_of_script(folder, style) for style in STYLES}
