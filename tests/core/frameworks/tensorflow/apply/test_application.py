"""What a script's user reads about a plan that is applied to it."""

import numpy as np
import pytest

from enplace.frameworks.tensorflow.apply.application import Application, PlacedFunction
from enplace.frameworks.tensorflow.apply.check import Check


@pytest.mark.parametrize(
    ("elsewhere", "said"),
    [
        ([], "3 of 3 ops run where planned, 5 control edges"),
        (["while/Shape"], "2 of 3 ops run where planned (TensorFlow moved 'while/Shape'), 5"),
        (["a", "b"], "1 of 3 ops run where planned (TensorFlow moved 'a' and 1 other), 5"),
    ],
)
def test_ops_that_run_elsewhere_are_named(elsewhere, said):
    facts = {"elsewhere": {"count": len(elsewhere), "ops": elsewhere}}
    check = Check(np.zeros(3, np.int64), 3, 3 - len(elsewhere), facts)
    assert said in str(PlacedFunction("step", 5, 0, (), check))


def test_what_to_do_about_other_batches_is_said_once(capsys):
    application = Application("plan.json")
    for length in (8, 12, 16):
        application.note_batches([(4, 8)], [(4, length)])
    first, second = capsys.readouterr().err.splitlines()
    assert "their shapes are 4 × 12, and those of the profile 4 × 8" in first
    assert "--batch-size" in first
    assert second == "enplace: plan.json: other batches than the profile's here, too: 4 × 16"


def test_the_rest_of_the_data_is_no_other_batch(capsys):
    application = Application("plan.json")
    application.note_batches([(4, 8), (4,)], [(4, 8), (4,)])
    application.note_batches([(4, 8), (4,)], [(3, 8), (3,)])
    assert not capsys.readouterr().err
    application.note_batches([(4, 8), (4,)], [(4, 12), (4,)])
    assert "4 × 12" in capsys.readouterr().err
