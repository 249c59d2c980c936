"""Enplace for notebooks and scripts: the functions behind ``import enplace as ep``.

Times are in µs and sizes in bytes, as the names say. A cluster is a preset's name, a JSON file,
``"local"`` (the devices that the profile was measured on), ``"from-file"`` (the devices in an input
of Tarnawski et al.), the contents of such a JSON file, or a :class:`Cluster`. A file's name may be
a text or a path. What cannot be used is refused with an :class:`EnplaceError` of one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter

from enplace.api.checks import checked, texts
from enplace.api.demands import Demand, demands
from enplace.api.graphs import from_networkx, to_networkx
from enplace.api.models import read_onnx
from enplace.api.notebook import show_values_in_notebooks
from enplace.api.result import Catalogue, Comparison, Result
from enplace.bounds import with_bound
from enplace.errors import EnplaceError, EnplaceWarning, PlanError
from enplace.files.outputs import PROFILE, make_room
from enplace.inputs import (
    PathLike,
    check_warm_start,
    choose_method,
    find_profile,
    make_problem,
    make_roomy_problem,
    method_names,
    read_problem_and_plan,
    read_start,
    usual_method,
    values_of_methods,
    without_split_groups,
)
from enplace.machine.check_claims import simulate_given
from enplace.mends.search import ROW_S, Fit, find_fit
from enplace.option import Value
from enplace.placers import PlaceOptions, Placer, Progress, Stop, place_with_each, placers
from enplace.placers import place as run_placer
from enplace.placing.next_moves import NextMove
from enplace.placing.next_moves import next_moves as find_next_moves
from enplace.placing.next_moves.search import USUAL_S
from enplace.readers.clusters import ClusterChoice, cluster_from, presets
from enplace.readers.samples import Sample
from enplace.readers.samples import samples as bundled_samples
from enplace.serving.answer import Serving, find_serving
from enplace.values.cluster import Cluster
from enplace.values.plan import Plan, under_policies
from enplace.values.problem import STEP_TIME, THROUGHPUT, Problem, split_problem
from enplace.values.profile import Profile
from enplace.values.schedule import Schedule
from enplace.writers import write_profile

__all__ = [
    "Cluster",
    "Comparison",
    "EnplaceError",
    "EnplaceWarning",
    "Fit",
    "NextMove",
    "Plan",
    "Problem",
    "Profile",
    "Progress",
    "Result",
    "Schedule",
    "Serving",
    "clusters",
    "compare",
    "fit",
    "from_networkx",
    "methods",
    "next_moves",
    "place",
    "plan_serving",
    "read",
    "read_cluster",
    "read_onnx",
    "read_plan",
    "samples",
    "simulate",
    "to_networkx",
    "write",
]

MOST_SEED = 2**32 - 1

show_values_in_notebooks()


@checked
def read(path: PathLike) -> Profile:
    """Read a profile from a file of any format that Enplace knows.

    Parameters
    ----------
    path : str or path
        The file; or one of :func:`samples`.

    Returns
    -------
    Profile
        The graph with its measured costs.

    Raises
    ------
    EnplaceError
        If the file cannot be used; the line says where, and how to correct it.

    Examples
    --------
    >>> profile = ep.read("model.enplace")
    >>> profile = ep.read(ep.samples()["vgg-19"])
    """
    return find_profile(path)


@checked
def write(path: PathLike, profile: Profile, *, force: bool = False) -> None:
    """Write a profile: as ``.enplace``, or as readable text if the name ends in ``.json``.

    What the file held is kept beside it, under its name with a tilde.

    Parameters
    ----------
    force : bool
        Replace a file even if it is of another kind.

    Raises
    ------
    FileError
        If the file cannot be written, or is of another kind.
    """
    make_room(path, PROFILE, force=force)
    write_profile(path, profile)


def samples() -> Catalogue[Sample]:
    """Return the bundled profiles by name.

    Returns
    -------
    dict of str to Sample
        Each goes to :func:`read`, and has a ``title``, a ``description`` and the ``cluster`` that
        it is usually placed on.
    """
    return Catalogue({each.name: each for each in bundled_samples()}, attrgetter("title"))


def clusters() -> Catalogue[Cluster]:
    """Return the clusters that ship with Enplace by name: the presets.

    Returns
    -------
    dict of str to Cluster
        Each has ``devices``, ``links`` and a ``description``, and ``print`` shows all of these;
        ``cluster.scaled(links=2.0)`` has links twice as fast.
    """
    return Catalogue(presets(), attrgetter("summary"))


@checked
def read_cluster(cluster: ClusterChoice, profile: Profile | PathLike) -> Cluster:
    """Return the cluster that a name or a file stands for, to look at or to scale.

    Parameters
    ----------
    cluster : str, path, mapping or Cluster
        As for :func:`place`.
    profile : Profile, str or path
        The profile whose devices ``"local"`` and ``"from-file"`` are.

    Examples
    --------
    >>> faster = ep.read_cluster("local", profile).scaled(links=2.0)
    """
    return cluster_from(cluster, find_profile(profile))


@checked
def methods(objective: str | None = None) -> Catalogue[Placer]:
    """Return the methods by name.

    Parameters
    ----------
    objective : {"step-time", "throughput", "latency"}, optional
        List only the methods that serve it.

    Returns
    -------
    dict of str to Placer
        Each has a ``title``, a ``summary``, ``good`` (when to choose it), the ``source`` that it
        comes from, its ``options``, and ``why_not`` if it cannot run on this machine.
    """
    if objective is not None:
        usual_method(objective)
    return Catalogue(placers(objective), attrgetter("title"))


@checked
def place(
    profile: Profile | PathLike,
    cluster: ClusterChoice,
    method: str | None = None,
    *,
    objective: str = STEP_TIME,
    time_limit_s: float | None = None,
    seed: int = 0,
    constraints: PathLike | None = None,
    grain: str = "",
    whole: str | Iterable[str] = (),
    reserve: str = "",
    start: Result | PathLike | None = None,
    options: Mapping[str, Value] | None = None,
    progress: Callable[[Progress], None] | None = None,
    **given: Demand,
) -> Result:
    r"""Decide where every op of a profile runs, and in what order.

    Parameters
    ----------
    profile : Profile, str or path
        The graph with its costs, or the file that holds it.
    cluster : str, path, mapping or Cluster
        The machine: a preset's name, a JSON file, ``"local"``, ``"from-file"``...
    method : str, optional
        One of :func:`methods`; by default, the usual one for the objective.
    objective : {"step-time", "throughput", "latency"}
        What to minimise: the time of one step, the time per sample of a pipeline, or the latency of
        one query.
    time_limit_s : float, optional
        When a search stops, in seconds, with its best plan; without a limit, each method does its
        usual amount of work.
    seed : int
        Seed of everything random: equal seeds give equal plans, unless time
        ends the search.
    constraints : str or path, optional
        A file of constraints that the studio exported; those given here go before it.
    grain : str, optional
        Keep together what the model's framework knows as one, such as ``"module"``. By default,
        ``"block"`` for the throughput of PyTorch's models, unless other constraints divide blocks;
        else ``"op"``, which keeps nothing together.
    whole : str or iterable of str, optional
        Regexes; ops whose names or scopes have the same match stay together: ``r"layers/\d+"``
        keeps each layer whole.
    reserve : str, optional
        Memory of each GPU that no plan may use: ``"1GiB"``, or ``"5%"`` of each; by default, what
        the cluster says.
    start : Result, str or path, optional
        A plan to improve; not every method can.
    options : mapping of str to value, optional
        The method's own options by name: ``{"rounds": 2}``; see ``methods()[name].options``.
    progress : callable, optional
        Called with a :class:`Progress` for every better plan and change of phase, possibly in
        another thread.
    pins : mapping of str to str or int, or iterable
        Keep the ops whose names match a regex on a device: ``{"decoder/.*": "GPU:1"}``. The regex
        may match anywhere in a name; the full name of an op means only that op.
    colocate : str or iterable of str
        Regexes; the ops that match one stay together on some device.
    forbid : mapping of str to str or int, or iterable
        Keep ops off a device, or off several: ``{"embedding": ["GPU:0", "GPU:1"]}``.
    before : mapping of str to str, or iterable
        Run the ops that match a regex before those that match another:
        ``[("layer_0", "layer_1")]``.
    lock : str or iterable of str
        Devices that run nothing but what is pinned to them: ``"GPU:0"``.
    stay_close : mapping, or iterable of (Result, str or path) and int
        Run at most so many ops elsewhere than in a plan: ``[(earlier, 20)]`` or
        ``{"plan.json": 20}``.
    **given
        The constraints above; each kind that ``enplace place --help`` lists is one.

    Returns
    -------
    Result
        A plan that obeys all constraints, simulated; ``result.fits`` says whether there is enough
        memory for it.

    Raises
    ------
    EnplaceError
        If something cannot be used, or no plan can be: a :class:`~enplace.errors.DoesNotFitError`,
        for example.

    Examples
    --------
    >>> result = ep.place("model.enplace", "h100-4-nvlink", time_limit_s=10)
    >>> result.step_time_us
    >>> result.save("plan.json")
    """
    asked = _options(objective, time_limit_s, seed, progress)
    values = dict(options or {})
    chosen = choose_method(method, objective, values)
    usual_for = objective if start is None else ""  # it may divide anything
    problem = _problem(profile, cluster, constraints, grain, whole, reserve, usual_for, given)
    first = None if start is None else _start(problem, start, chosen)
    asked = replace(asked, start=first, values=values)
    return Result.of(run_placer(problem, chosen, options=asked))


@checked
def compare(
    profile: Profile | PathLike,
    cluster: ClusterChoice,
    methods: str | Iterable[str] | None = None,
    *,
    objective: str = STEP_TIME,
    time_limit_s: float | None = None,
    seed: int = 0,
    constraints: PathLike | None = None,
    grain: str = "",
    whole: str | Iterable[str] = (),
    reserve: str = "",
    options: Mapping[str, Value] | None = None,
    progress: Callable[[Progress], None] | None = None,
    **given: Demand,
) -> Comparison:
    """Solve a problem with several methods.

    Parameters
    ----------
    methods : str or iterable of str, optional
        Names of methods, also ``"heft,expert"``; by default, all that are installed and serve the
        objective. If one fails, the others still run.
    time_limit_s : float, optional
        The limit of each method, in seconds.
    options : mapping of str to value, optional
        Options of methods by name; each applies to the methods that have it.
    profile, cluster, objective, seed, progress, constraints, grain, whole, reserve, **given
        As for :func:`place`.

    Returns
    -------
    Comparison
        ``comparison.best`` is the best :class:`Result`, ``comparison.results`` holds all.

    Raises
    ------
    EnplaceError
        If something cannot be used.
    """
    asked = _options(objective, time_limit_s, seed, progress)
    wanted = None if methods is None else ",".join(texts(methods, "methods"))
    values = values_of_methods(method_names(wanted, objective), dict(options or {}))
    problem = _problem(profile, cluster, constraints, grain, whole, reserve, objective, given)
    results, failures = place_with_each(problem, values, asked)
    return Comparison(
        {name: Result.of(each) for name, each in results.items()},
        {name: str(error) for name, error in failures.items()},
    )


@checked
def fit(
    profile: Profile | PathLike,
    cluster: ClusterChoice,
    *,
    objective: str = STEP_TIME,
    time_limit_s: float = ROW_S,
    seed: int = 0,
    constraints: PathLike | None = None,
    grain: str = "",
    whole: str | Iterable[str] = (),
    reserve: str = "",
    options: Mapping[str, Value] | None = None,
    progress: Callable[[Progress], None] | None = None,
    **given: Demand,
) -> Fit:
    """Find what would make a model fit in memory, and what each way costs.

    Parameters
    ----------
    objective : {"step-time", "throughput"}
        What each plan is for.
    time_limit_s : float
        How long to search for a plan with each change, in seconds.
    profile, cluster, seed, constraints, grain, whole, reserve, options, progress, **given
        As for :func:`place`.

    Returns
    -------
    Fit
        ``fits`` says whether the model fits as it is, ``rows`` holds what was tried, each with its
        ``change``, ``result`` and ``batch_us``; ``print`` shows a table, and ``save`` writes all
        plans that fit to a folder.

    Raises
    ------
    EnplaceError
        If something cannot be used.

    Examples
    --------
    >>> found = ep.fit("model.enplace", "v100-2-pcie")
    >>> found.save("ways")
    """
    if objective not in (STEP_TIME, THROUGHPUT):
        raise EnplaceError(f"objective is '{objective}'; use '{STEP_TIME}' or '{THROUGHPUT}'")
    asked = replace(_options(objective, time_limit_s, seed, progress), values=dict(options or {}))
    problem, machine = make_roomy_problem(
        profile,
        cluster,
        reserve=reserve,
        constraints=constraints,
        grain=grain,
        whole=texts(whole, "whole"),
        objective=objective,
        **demands(given),
    )
    found = find_fit(problem, machine, usual_method, replace(asked, stop=Stop()), time_limit_s)
    rows = (replace(row, result=row.result and Result.of(row.result)) for row in found.rows)
    return replace(found, rows=tuple(rows))


def _problem(
    profile: Profile | PathLike,
    cluster: ClusterChoice,
    constraints: PathLike | None,
    grain: str,
    whole: str | Iterable[str],
    reserve: str,
    objective: str,
    given: Mapping[str, Demand],
) -> Problem:
    return make_problem(
        profile,
        cluster,
        constraints=constraints,
        grain=grain,
        whole=texts(whole, "whole"),
        reserve=reserve,
        objective=objective,
        **demands(given),
    )


@checked
def simulate(
    profile: Profile | PathLike,
    plan: Result | PathLike,
    cluster: ClusterChoice | None = None,
    *,
    policy: str | None = None,
    links: str | None = None,
    complete: bool = False,
    scale_compute: float = 1.0,
    scale_links: float = 1.0,
    reserve: str = "",
) -> Result:
    """Predict the step time of a plan.

    Parameters
    ----------
    profile : Profile, str or path
        The graph with its costs, or the file that holds it.
    plan : Result, str or path
        The plan, or its file.
    cluster : str, path, mapping or Cluster, optional
        As for :func:`place`; by default the one that the plan was made for.
    policy : {"priority", "strict", "fifo"}, optional
        How a device chooses its next op; by default as the plan says.
    links : {"fifo", "priority", "ordered"}, optional
        How a channel chooses its next transfer; by default as the plan says.
    complete : bool
        Place the ops that a plan file does not name next to their neighbours; otherwise, such a
        plan is refused.
    scale_compute, scale_links : float
        Make every device, or every link, faster by this factor.
    reserve : str, optional
        As for :func:`place`.

    Returns
    -------
    Result
        The plan with its schedule and a lower bound.

    Raises
    ------
    EnplaceError
        If the plan is for another graph or other devices, or its order makes ops wait for each
        other.
    """
    if isinstance(plan, Result):
        problem, chosen = _replayed(profile, plan, cluster, scale_compute, scale_links, reserve)
    else:
        problem, chosen = read_problem_and_plan(
            profile,
            plan,
            cluster,
            scale_compute,
            scale_links,
            complete,
            "complete=True",
            reserve,
        )
    chosen = under_policies(problem.profile, chosen, policy, links)
    problem = without_split_groups(problem, chosen)
    return Result.of(with_bound(simulate_given(problem, chosen)))


@checked
def next_moves(result: Result, time_limit_s: float = USUAL_S) -> tuple[NextMove, ...]:
    """Find the edits of a plan that improve it most, each with its price and a reason.

    Parameters
    ----------
    result : Result
        What :func:`place`, :func:`simulate` or :func:`read_plan` returned.
    time_limit_s : float
        How long to search, in seconds.

    Returns
    -------
    tuple of NextMove
        The best first. Each has a ``title``, a ``reason``, the time ``before_us`` and
        ``after_us``, and goes to :meth:`Result.after`.

    Examples
    --------
    >>> result = ep.place("model.enplace", "h100-4-nvlink", "heft")
    >>> first = ep.next_moves(result)[0]
    >>> print(first.title, first.change)
    >>> result.after(first).save("plan.json")
    """
    stop = _options(STEP_TIME, time_limit_s, 0, None).stop
    return find_next_moves(result.schedule.problem, result.plan, stop=stop)


@checked
def read_plan(
    path: PathLike, profile: Profile | PathLike, cluster: ClusterChoice | None = None
) -> Result:
    """Read ``plan.json``, and simulate it on the profile that it is for.

    A plan file says where each op runs and in what order; how long that takes, the profile says.

    Parameters
    ----------
    path : str or path
        The plan's file.
    profile : Profile, str or path
        The graph with its costs, or the file that holds it.
    cluster : str, path, mapping or Cluster, optional
        As for :func:`place`; by default the one in the plan's file.

    Raises
    ------
    EnplaceError
        If a file cannot be used, or the plan is for another graph.
    """
    return simulate(profile, path, cluster)


@checked
def plan_serving(
    model: PathLike,
    cluster: ClusterChoice,
    *,
    context: int | str | None = None,
    requests: int | str = 1,
    objective: str = "tokens-per-second",
    reserve: str = "",
    cache: str = "16-bit",
) -> Serving:
    """Plan which layers of a decoder model each card holds, to serve it; nothing is started.

    Parameters
    ----------
    model : str or path
        A folder with ``.safetensors`` and ``config.json``, their index, a ``.gguf`` file, or a
        bundled description such as ``"llama-3-70b-fp8"``. Only names, types and shapes are read.
    cluster : str, path, mapping or Cluster
        Cards such as ``"rtx-4090,3*rtx-a5000,cpu:64GiB"``, a preset, or a cluster whose devices
        say their ``model``.
    context : int or str, optional
        Tokens of each request; ``"32k"``, or ``"longest"``. By default, what the model was made
        for, at most 8,192.
    requests : int or str
        Requests at once, or ``"most"``.
    objective : {"tokens-per-second", "latency-per-token"}
        The tokens of all requests, or the time of a token of one request alone.
    reserve : str, optional
        Memory that each card keeps free: ``"1GiB"``, or ``"10%"``.
    cache : {"16-bit", "8-bit"}
        Precision of the cache of keys and values.

    Returns
    -------
    Serving
        Its ``devices``, ``tokens_per_s``, ``longest_context``, ``most_requests`` and ``commands``,
        all estimated; ``print`` shows them.

    Raises
    ------
    EnplaceError
        If something cannot be used; a :class:`~enplace.errors.DoesNotFitError` if the model does
        not fit.

    Examples
    --------
    >>> found = ep.plan_serving("llama-3-70b-fp8", "rtx-4090,3*rtx-a5000,rtx-3060", requests=8)
    >>> print(found.commands["vLLM"])
    """
    return find_serving(model, cluster, context, requests, objective, reserve, cache)


def _options(
    objective: str,
    time_limit_s: float | None,
    seed: int,
    progress: Callable[[Progress], None] | None,
) -> PlaceOptions:
    if time_limit_s is not None and not 0 < time_limit_s < math.inf:
        raise EnplaceError(f"time_limit_s is {time_limit_s}; use a number of seconds above 0")
    if not 0 <= seed <= MOST_SEED:
        raise EnplaceError(f"seed is {seed}; use 0 to {MOST_SEED}")
    options = PlaceOptions(objective, Stop(time_limit_s), seed)
    return options if progress is None else replace(options, progress=progress)


def _start(problem: Problem, start: Result | PathLike, method: str) -> Plan:
    """Return the plan to begin from."""
    if not isinstance(start, Result):
        return read_start(problem, start, method)
    check_warm_start(method)
    _like(problem, start)
    return start.plan


def _replayed(
    profile: Profile | PathLike,
    result: Result,
    cluster: ClusterChoice | None,
    scale_compute: float,
    scale_links: float,
    reserve: str,
) -> tuple[Problem, Plan]:
    """Return the problem of other costs or of another cluster, and the plan of a result for it."""
    old = result.schedule.problem
    machine = old.cluster if cluster is None else cluster
    made = make_problem(profile, machine, scale_compute, scale_links, reserve=reserve)
    problem = _like(made, result)
    return problem.constrained(before=old.before), result.plan


def _like(problem: Problem, result: Result) -> Problem:
    """Split a problem as a result is split, and refuse one with other ops or devices."""
    old, new = result.schedule.problem, split_problem(problem, result.plan.splits)
    if old.profile.op_names != new.profile.op_names or [*old.cluster.index] != [*new.cluster.index]:
        raise PlanError(
            f"the plan is for other ops or devices, those of {old.profile.name} on "
            f"{old.cluster.name}; place again for these"
        )
    return new
