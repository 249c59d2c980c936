"""What is tried for plans that exceed memory."""

from benchmarks.planted import planted
from enplace.placers import place


def test_a_quick_methods_plan_is_mended_where_memory_only_just_suffices():
    case = planted(300, 4, 3.0, spare=0.05, transfer_us=30.0, seed=1)
    found = place(case.problem, "celeritas")
    assert found.schedule.fits
    assert "were moved to fit" in found.plan.note
    assert found.schedule.makespan_us < 1.15 * case.best_us
