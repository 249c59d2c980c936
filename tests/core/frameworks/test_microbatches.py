import numpy as np
import pytest

from enplace.errors import PipelineError
from enplace.frameworks.microbatches import WHOLE, Microbatches, find_early
from problems import profile_of


@pytest.mark.parametrize(
    ("schedule", "number", "complaint"),
    [
        ("1f1b", 1, "at least 2"),
        ("1f1b", "8", "at least 2"),
        ("1f1b", 2.5, "at least 2"),
        (3, 8, "there is no pipeline '3'"),
    ],
)
def test_what_is_no_pipeline_is_refused(schedule, number, complaint):
    with pytest.raises(PipelineError, match=complaint):
        Microbatches(schedule, number)


def test_masks_that_a_mean_loss_counts_do_not_begin_their_micro_batch():
    names = [f"{op}{i}" for i in range(3) for op in ("mask", "forward", "gradient")]
    edges = [(f"mask{i}", "count", 1) for i in range(3)]
    edges += [(f"{op}{i}", f"gradient{i}", 1) for i in range(3) for op in ("mask", "forward")]
    edges += [("count", f"gradient{i}", 1) for i in range(3)]
    edges += [("gradient0", "sum1", 1), ("gradient1", "sum1", 1)]
    edges += [("sum1", "sum2", 1), ("gradient2", "sum2", 1), ("sum2", "update", 1)]
    profile = profile_of(dict.fromkeys([*names, "count", "sum1", "sum2", "update"], 1.0), edges)
    part = np.array([int(n[-1]) if n[-1].isdigit() else WHOLE for n in profile.op_names])
    gradients = np.array([n.startswith("gradient") for n in profile.op_names])
    early = find_early(profile, part, gradients)
    assert [profile.op_names[op] for op in np.flatnonzero(early)] == ["mask1", "mask2"]
