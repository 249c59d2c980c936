"""What a person reads on a terminal while a command works."""

import numpy as np
from numba import njit

from enplace.cli import progress


class Bar:
    """Records the texts of a bar."""

    def __init__(self):
        self.texts = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def set_description_str(self, text):
        self.texts.append(text)


def test_a_command_says_that_it_compiles(monkeypatch):
    bar = Bar()
    monkeypatch.setattr(progress, "_bar", lambda total, delay_s: bar)

    @progress.compiling_bar()
    def work():
        return njit(lambda x: x + 1)(np.int64(1))

    assert work() == 2
    assert bar.texts == ["Compiling, once after installation"]
    with progress.compiling_bar():
        pass
    assert len(bar.texts) == 1
