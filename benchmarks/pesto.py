"""The claims of Pesto's paper about its integer program, simulated: section 5.3, Fig. 5 and 8.

The paper solved 200 vertices with CPLEX in 24 to 51 minutes. A free solver manages about 40 of
them in a minute; for the paper's 200, ``pesto`` searches for the program's result ("simulated" is
the better of the two). ``enplace`` is shown for comparison.
"""

from __future__ import annotations

import time
import warnings

from benchmarks.place import measured_profiles
from benchmarks.report import title
from enplace.coarsen import contract, expand, merge_batches
from enplace.machine import simulate
from enplace.placers import DEFAULT_METHOD, PlaceOptions, place
from enplace.placers.heft import heft
from enplace.placers.pesto.methods import FREE_TARGET
from enplace.placers.pesto.program import write_program
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.solvers.milp import solve_milp
from enplace.values.cluster import Cluster
from enplace.values.problem import Problem
from enplace.values.profile import Profile

SECONDS = 60.0
"""Time for each placement of the first table and of Fig. 5."""

SWEEP_S = 20.0
"""Time for each point of Fig. 8."""

SEARCH_S = 10.0
"""Time for ``enplace``, which is compared with them."""

TABLE = ("nmt_2_1024", "rnnlm_2_2048", "rnnlm_4_2048", "transformer_6_16_2048", "nasnet_6_168")
FIG_5, FIG_8A, FIG_8B = "rnnlm_2_2048_fp32", "rnnlm_2_2048", "nmt_2_1024"

FASTER = (0.5, 1.0, 2.0, 4.0)
LINKS = (0.1, 0.3, 1.0, 3.0, 10.0)


def main() -> None:
    """Print the table and both figures."""
    profiles = _profiles()
    _placement_times(profiles)
    _congestion(profiles)
    _sweep(profiles, FIG_8A, "compute", FASTER)
    _sweep(profiles, FIG_8B, "links", LINKS)


def _profiles() -> dict[str, Profile]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            path.name.split(".")[0].replace("-", "_"): read_profile(path)
            for path in measured_profiles()
        }


def _step_ms(problem: Problem, method: str, limit_s: float) -> float:
    plan = place(problem, method, options=PlaceOptions(time_limit_s=limit_s)).plan
    return simulate(problem, plan).makespan_us / 1e3


def _placement_times(profiles: dict[str, Profile]) -> None:
    title("Section 5.3: placement with Pesto's integer program on two GPUs (step times in ms)")
    print(
        f"{'':<24}{'vertices':>9}{'binaries':>9}{'rows':>9}{'seconds':>9}{'ILP':>9}"
        f"{'ILP bound':>11}{'simulated':>11}{'expert':>9}{DEFAULT_METHOD:>9}"
    )
    for name in TABLE:
        if name not in profiles:
            continue
        problem = Problem(profiles[name], presets()["pesto"])
        began = time.perf_counter()
        plan = place(problem, "pesto", options=PlaceOptions(time_limit_s=SECONDS)).plan
        seconds = time.perf_counter() - began
        step_ms = simulate(problem, plan).makespan_us / 1e3
        expert_ms = _step_ms(problem, "expert", SEARCH_S)
        own_ms = _step_ms(problem, DEFAULT_METHOD, SEARCH_S)
        details = plan.details
        print(
            f"{name:<24}{details['vertices']:>9}{details['variables']:>9}{details['rows']:>9}"
            f"{seconds:>9.1f}{_ms(details['ilp_step_time_us']):>9}{_ms(details['ilp_bound_us']):>11}"
            f"{step_ms:>11.1f}{expert_ms:>9.1f}{own_ms:>9.1f}",
            flush=True,
        )


def _ms(us: object) -> str:
    return f"{us / 1e3:.1f}" if isinstance(us, float) else "-"


def _congestion(profiles: dict[str, Profile]) -> None:
    """Solve the same program without and with constraint 7; simulate both with busy links."""
    title(f"Fig. 5: constraint 7 (one transfer at a time on a link), {FIG_5}, step times in ms")
    print(f"{'link speed':<24}{'':<10}{'ILP':>9}{'vertices simulated':>20}{'ops simulated':>15}")
    for links in LINKS[:3]:
        cluster = presets()["pesto"].scaled(links=links)
        for congestion in (False, True):
            ilp_us, coarse_us, fine_us = _solved(profiles[FIG_5], cluster, congestion)
            word = "with" if congestion else "without"
            print(
                f"{links:<24g}{word:<10}{ilp_us / 1e3:>9.1f}{coarse_us / 1e3:>20.1f}"
                f"{fine_us / 1e3:>15.1f}",
                flush=True,
            )


def _solved(profile: Profile, cluster: Cluster, congestion: bool) -> tuple[float, float, float]:
    """Return the program's step time, and the simulated ones of its plan on vertices and on ops."""
    problem = Problem(profile, cluster)
    vertex = merge_batches(problem, FREE_TARGET)
    coarse = contract(problem, vertex)
    program = write_program(coarse, congestion)
    start = program.values(heft(coarse, PlaceOptions()))
    answer = solve_milp(program.model, start, SECONDS, lambda: False, lambda answer: None)
    assert answer.values is not None
    plan = program.plan(answer.values)
    fine = expand(problem, vertex, plan)
    return (
        answer.objective,
        simulate(coarse, plan).makespan_us,
        simulate(problem, fine).makespan_us,
    )


def _sweep(profiles: dict[str, Profile], name: str, what: str, factors: tuple[float, ...]) -> None:
    """Print step times of Pesto and of the expert as devices or links become faster."""
    figure = {"compute": "8(a)", "links": "8(b)"}[what]
    title(f"Fig. {figure}: {what} speed, {name} on two GPUs, step times in ms")
    columns = ("expert", "pesto", DEFAULT_METHOD)
    print(f"{'times':<8}" + "".join(f"{column:>22}" for column in columns))
    for factor in factors:
        scales = {what: factor}
        problem = Problem(profiles[name], presets()["pesto"].scaled(**scales))
        expert_ms = _step_ms(problem, "expert", SEARCH_S)
        steps_ms = (
            _step_ms(problem, "pesto", SWEEP_S),
            _step_ms(problem, DEFAULT_METHOD, SEARCH_S),
        )
        less = (f"{ms:.1f} ({100 * (ms / expert_ms - 1):+.0f} %)" for ms in steps_ms)
        print(f"{factor:<8g}{expert_ms:>22.1f}" + "".join(f"{x:>22}" for x in less), flush=True)


if __name__ == "__main__":
    main()
