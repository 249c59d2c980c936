"""How a model with other widths is told from the profiled one."""

from dataclasses import replace

from enplace.values.measurement import Evaluation, Measurement
from enplace.values.op_sizes import about_other_sizes, op_sizes
from enplace.values.profile import make_profile

MEASURED = Measurement(batch_shapes=((4, 8),))


def profile(measured=MEASURED):
    return make_profile(
        "m",
        op_names=["weight", "split", "end"],
        time_us=[[1, 1]] * 3,
        persistent_bytes=[512, 0, 0],
        edge_source=[0, 1, 1],
        edge_output=[0, 0, 1],
        edge_op=[1, 2, 2],
        edge_bytes=[0, 64, 128],
        measured=measured,
    )


def test_an_op_is_as_large_as_its_variable_or_its_largest_tensor():
    assert op_sizes(profile()) == {"weight": 512, "split": 128}


def test_sizes_that_were_not_measured_are_not_known():
    evaluation = Evaluation(None, None, 8, (2, 4), 1, 1.0)
    for measured in (Measurement(), replace(MEASURED, evaluation=evaluation)):
        assert op_sizes(profile(measured)) == {}


def test_other_sizes_are_counted_and_the_first_is_named():
    planned = {"weight": 512, "split": 128, "gone": 4}
    assert about_other_sizes(planned, {"weight": [512], "split": [64, 128], "new": [9]}) == ""
    assert about_other_sizes(planned, {"weight": [], "split": [128]}) == ""
    now = "than in the profile ('weight' 512 B, now 1.0 KiB)"
    one = about_other_sizes(planned, {"weight": [1024], "split": [64, 128]})
    assert one.startswith(f"1 op has another size {now}")
    two = about_other_sizes(planned, {"weight": [1024], "split": [64, 256]})
    assert two.startswith(f"2 ops have other sizes {now}")
