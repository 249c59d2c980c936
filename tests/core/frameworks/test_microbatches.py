from dataclasses import replace

import numpy as np
import pytest

from enplace.errors import PipelineError
from enplace.frameworks.microbatches import WHOLE, Microbatches, find_early, on_microbatch
from enplace.machine import simulate
from enplace.readers import read_plan_alone
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from enplace.values.result import Result
from enplace.writers import write_plan
from problems import cluster_of, plan_of, profile_of


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


def test_the_file_of_a_plan_for_a_part_of_the_batch_predicts_no_step_of_the_whole(tmp_path):
    for source, is_whole in (({}, True), ({"cut_batch": 8}, False)):
        profile = replace(profile_of({"a": 8.0}), measured=Measurement(source=source))
        problem = Problem(profile, cluster_of(1))
        write_plan(tmp_path / "plan.json", Result(simulate(problem, plan_of(problem, {"a": 0}))))
        alone = read_plan_alone(tmp_path / "plan.json")
        assert np.isfinite(alone.step_time_us) == is_whole
        assert (alone.problem.measured_profile.measured.parts_of_batch == 1) == is_whole


def test_a_micro_batch_takes_its_share_of_what_was_profiled_of_the_batch():
    cut = Measurement(source={"cut_batch": 8})
    profile = replace(profile_of({"forward": 8.0, "gradient": 16.0}), measured=cut)
    problem = Problem(profile, cluster_of(2))
    times_us = [on_microbatch(problem, number).profile.time_us[:, 0] for number in (8, 4)]
    assert [each.tolist() for each in times_us] == [[8, 16], [16, 32]]
