"""Proven lower bounds on the step time.

Four of them consider only work: the work of any set of ops on the devices that may do it, the
longest placement unit, the number of long ops, and all units with their variables on the devices
with their memory, at the best prices. The others consider the graph and the cost of leaving a
device:

*Heads.* Let x be an ancestor of v that is not on v's device. Then every path from x to v is cut
somewhere, and v cannot start before key(x): the earliest end of x, plus the work of the ops between
on one path, plus the cheapest transfer on it. So if v starts at s, all x with key(x) > s are on v's
device, and with them their placement units. This raises other keys: an op that is elsewhere waits
for a transfer of what these ops make, and must send something before the next of them needs it. So
more ops turn out to be on v's device. It runs them one after another: v cannot start before the
earliest start of some of them, plus the work of these, plus the shortest way from any of these to
v. The smallest consistent s is the head of v. (One level of this, with a single path and a single
transfer, is the classic bound of scheduling with communication delays, Fernandez and Bussell 1973;
here it goes back as far as it pays.) Tails, from the end of an op to the end of the step, are heads
of the reversed graph. If no device has enough memory for both ends of an edge, every way through
that edge includes its cheapest transfer.

*Joins.* All ancestors of v with heads of at least a run between a and the start of v, s. Those that
are not on v's device must also leave theirs, which takes at least e, so the other devices have only
s - a - e for them: the lanes of all devices together must have enough time for this work. Along a
row of blocks of parallel ops (the heads of attention, the branches of Inception, the cells of
NASNet), each with an op before and after it, this adds up from block to block.

*Forks and joins.* Let v need a set of ops that all need u. Those that are not on u's device first
wait for a transfer; those that are not on v's device must send something at the end. So of the time
T from the end of u to the start of v, the other devices have only T minus both. On all devices
together, that must be enough for the work of the set. We try the sets of the ops that have the
longest ways in. If the links of all devices share one channel, the first of the other devices waits
for one transfer, the next for two, and so on; the same holds at the end.

*Path.* No step is shorter than head + time + tail of any op.

*Time windows.* Ops with heads of at least a and tails of at least b all run within the step minus
a + b, and the devices have only that time to do their work.

*Counts.* Of n * q + 1 ops on n lanes, some lane runs q + 1 or more. So no step is shorter than the
q + 1 shortest of the n * q + 1 longest ops together.

*Prices.* For prices w >= 0 of time, with sum(lanes * w) = 1, and p >= 0 of memory, no step is
shorter than the sum over units of min over devices of (w * time + p * bytes), minus
sum(p * capacity). This is the Lagrangian of the fractional assignment, which is a bound for any
prices. Good prices come from its linear program on cells of units that are nearly alike.

A unit's bytes here are those in memory from start to end: its variables. While one of its ops runs,
the op's inputs, outputs and temporary bytes are in memory as well. The bounds hold for schedules
that fit the devices' memory.

If plans may also compute ops again or keep what they make on the host (``Problem.any_copies``), the
graph here is the one without copies. Each of its ops still runs at least once, on a device of its
unit with its variables, so what counts only work holds as it is. A copy may run on any device that
can run the op, apart from its unit, and instead of a transfer; the host may pass on what devices
would send each other. So heads and tails then follow paths without transfers: along each path there
is a run of every op, the op's own or a copy's, each after the one before it. These runs also do the
work within a time window, on some device that can run the op. If no op reads an op's own run, what
it makes is not in memory then (``Problem.running_bytes``).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from enplace.bounds.heads import LeastCosts, earliest_starts
from enplace.linear import ModelBuilder, give_to_highs
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray

CELLS = 256
"""Most heads, and most tails, at which a time window may begin or end."""

MOST_OPS_WITH_HEADS = 400_000
"""Heads and tails take some 50 us per op; in a larger graph, they only follow paths."""


def lower_bound_us(problem: Problem, stop: BoolArray | None = None) -> float:
    """Find a bound that no schedule of the problem that fits can beat.

    Heads and tails take seconds on a large graph, so whoever needs the bound more than once should
    keep it (:class:`enplace.bounds.proofs.Proofs`). Once ``stop[0]`` is set, they only follow
    paths: this gives weaker bounds by path and by time windows, in some microseconds per op. Those
    by work and by prices are always complete.
    """
    time_us = _possible_us(problem)
    unit_us = _sums(problem.unit, time_us, problem.n_units)
    unit_bound = (unit_us / problem.cluster.lanes).min(axis=1).max()
    runs = _any_runs(problem) if problem.any_copies else problem
    run_us = _possible_us(runs)
    head_us, tail_us = heads_and_tails_us(runs, stop)
    path_bound = (head_us + run_us.min(axis=1) + tail_us).max()
    window_bound = _window_bound_us(runs, run_us, head_us, tail_us)
    work_bound = _work_bound_us(problem, unit_us)
    count_bound = _count_bound_us(problem, time_us)
    price_bound = _price_bound_us(problem, unit_us)
    return float(max(path_bound, window_bound, work_bound, unit_bound, count_bound, price_bound))


def _any_runs(problem: Problem) -> Problem:
    """Return the problem whose ops run as copies may: on any device that can run them."""
    profile = problem.profile
    apart = replace(profile, colocation=("",) * profile.n_ops)
    return Problem(apart, problem.cluster, any_copies=True)


def _possible_us(problem: Problem) -> FloatArray:
    """Return the time of each op where it is allowed and has room; shape (n_ops, n_devices)."""
    possible = _possible(problem, _running_bytes(problem))
    return np.where(possible[problem.unit], problem.time_us, np.inf)


def _sums(part: IntArray, values: FloatArray, n_parts: int) -> FloatArray:
    """Sum the rows of each part; shape (n_parts, n_columns)."""
    sums = np.empty((n_parts, values.shape[1]))
    for column in range(values.shape[1]):
        sums[:, column] = np.bincount(part, values[:, column], n_parts)
    return sums


def _running_bytes(problem: Problem) -> IntArray:
    """Find the most bytes that any op of each unit adds while it runs; shape (n_units,)."""
    # An op that takes no time may free everything before another op needs memory.
    op_bytes = np.where(problem.time_us.min(axis=1) > 0, problem.running_bytes, 0)
    running = np.zeros(problem.n_units, dtype=np.int64)
    np.maximum.at(running, problem.unit, op_bytes)
    return running


def _possible(problem: Problem, running: IntArray) -> BoolArray:
    """Find the devices that are allowed and large enough for a unit; shape (n_units, n_devices).

    If there are none, return all that are allowed: no plan fits, so any bound holds.
    """
    need = problem.unit_persistent_bytes + running
    possible = problem.unit_allowed & (need[:, None] <= problem.cluster.capacity_bytes)
    nowhere = ~possible.any(axis=1)
    possible[nowhere] = problem.unit_allowed[nowhere]
    return possible


def _apart(problem: Problem, possible: BoolArray, running: IntArray) -> BoolArray:
    """Find the edges whose two ends cannot be on one device together; shape (n_edges,)."""
    profile, held = problem.profile, problem.unit_persistent_bytes
    one, other = problem.unit[profile.edge_source], problem.unit[profile.edge_op]
    need = held[one] + held[other] + np.maximum(running[one], running[other])
    apart: BoolArray = one != other
    for d, capacity in enumerate(problem.cluster.capacity_bytes):
        left = np.flatnonzero(apart)
        together = possible[one[left], d] & possible[other[left], d] & (need[left] <= capacity)
        apart[left[together]] = False
    return apart


def heads_and_tails_us(
    problem: Problem, stop: BoolArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Find the release time and the delivery time of each op; shape (n_ops,).

    Both hold for every schedule that fits. Setting ``stop[0]`` makes those of some ops smaller.
    """
    only_paths = problem.any_copies or problem.profile.n_ops > MOST_OPS_WITH_HEADS
    flag = np.array([only_paths]) if stop is None or only_paths else stop
    costs = least_costs(problem)
    if problem.any_copies:
        unsure_us = np.zeros(problem.profile.n_edges)
        costs = costs[0]._replace(sure_us=unsure_us), costs[1]._replace(sure_us=unsure_us)
    with ThreadPoolExecutor(max_workers=2) as pool:
        head_us, tail_us = pool.map(earliest_starts, costs, (flag, flag))
    return head_us, tail_us


def least_costs(problem: Problem) -> tuple[LeastCosts, LeastCosts]:
    """Lay out what every plan pays in the graph, and in the reversed graph."""
    profile, running = problem.profile, _running_bytes(problem)
    possible = _possible(problem, running)
    apart = _apart(problem, possible, running)
    send_us = _least_send_us(problem)
    # If both ends must be apart but are allowed on only one device, no plan fits.
    sure_us = np.where(apart & np.isfinite(send_us), send_us, 0.0)
    weighted_us, most = _weighted_us(problem)
    bus_set, on_bus = _bus(problem, weighted_us)
    backwards = LeastCosts(
        order=profile.topological_order[::-1].copy(),
        unit=problem.unit,
        in_ptr=profile.out_ptr,
        producer=profile.edge_op.copy(),  # writable as the other: kernels are compiled once
        send_us=send_us,
        sure_us=sure_us,
        bus_us=np.where(on_bus & np.isfinite(send_us), send_us, 0.0),
        time_us=np.where(possible[problem.unit], problem.time_us, np.inf).min(axis=1),
        lanes=np.where(problem.unit_allowed, problem.cluster.lanes, 1).max(axis=1)[problem.unit],
        weighted_us=weighted_us,
        most=most,
        bus_set=bus_set,
    )
    edges = profile.in_edges
    forwards = backwards._replace(
        order=profile.topological_order,
        in_ptr=profile.in_ptr,
        producer=profile.edge_source[edges],
        send_us=send_us[edges],
        sure_us=sure_us[edges],
        bus_us=backwards.bus_us[edges],
    )
    return forwards, backwards


def _weighted_us(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """Weight the work of each op as in :func:`_device_weights`; 0 for ops that may be elsewhere.

    Returns
    -------
    float array, shape (n_sets, n_ops)
    float array, shape (n_sets,)
        The largest sum of weights over the lanes of one chip.
    """
    cluster = problem.cluster
    found, most = [], []
    for inside, weight in _device_weights(problem):
        found.append(np.where(inside[problem.unit], _least(problem.time_us, weight), 0.0))
        most.append((weight * cluster.lanes[cluster.lane_owner]).max())
    return np.array(found), np.array(most)


def _bus(problem: Problem, weighted_us: FloatArray) -> tuple[int, BoolArray]:
    """Find the busiest set of equal chips whose links all use one channel.

    Parameters
    ----------
    weighted_us : float array, shape (n_sets, n_ops)
        See :func:`_weighted_us`.

    Returns
    -------
    int
        Number of the set; -1 if there is none.
    bool array, shape (n_edges,)
        Edges whose two ends must both be on devices of that set.
    """
    cluster, profile = problem.cluster, problem.profile
    none = -1, np.zeros(profile.n_edges, dtype=bool)
    best, found = 0.0, none
    for number, (inside, weight) in enumerate(_device_weights(problem)):
        members = set(np.flatnonzero(weight > 0).tolist())
        of_chip = (weight * cluster.lanes)[weight > 0]
        routes = [
            set(link.channels) for link in cluster.links if {link.source, link.target} <= members
        ]
        if not routes or not set.intersection(*routes) or np.ptp(of_chip) > 0:
            continue
        if weighted_us[number].sum() > best:
            ops = inside[problem.unit]
            best = weighted_us[number].sum()
            found = number, ops[profile.edge_source] & ops[profile.edge_op]
    return found


def _least_send_us(problem: Problem) -> FloatArray:
    """Find the shortest transfer of each edge between two devices allowed for its ends; (n_edges,).

    Infinite if both ends are allowed on only one device, the same one.
    """
    profile, cluster = problem.profile, problem.cluster
    sets, set_of = problem.device_sets
    size = profile.tensor_bytes[profile.edge_tensor]
    source, target = (set_of[problem.unit[ops]] for ops in (profile.edge_source, profile.edge_op))
    least = np.full(profile.n_edges, np.inf)
    pair = source * len(sets) + target
    for code in np.unique(pair).tolist():
        a, b = divmod(code, len(sets))
        edges = np.flatnonzero(pair == code)
        pairs = {
            (cluster.b0_us[x, y], cluster.b1_us_per_byte[x, y]): (x, y)
            for x in np.flatnonzero(sets[a]).tolist()
            for y in np.flatnonzero(sets[b]).tolist()
            if x != y
        }
        for x, y in pairs.values():
            least[edges] = np.minimum(least[edges], cluster.transfer_us(size[edges], x, y))
    return least


def _window_bound_us(
    problem: Problem, time_us: FloatArray, head_us: FloatArray, tail_us: FloatArray
) -> float:
    """Bound by the work that must be done within a time window, on every set of devices."""
    best = 0.0
    starts, ends = (
        np.unique(np.quantile(values, np.linspace(0, 1, CELLS), method="lower"))
        for values in (head_us, tail_us)
    )
    for inside, weight in _device_weights(problem):
        ops = inside[problem.unit]
        work, _, _ = np.histogram2d(
            head_us[ops],
            tail_us[ops],
            bins=(np.append(starts, np.inf), np.append(ends, np.inf)),
            weights=_least(time_us[ops], weight),
        )
        later = work[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
        bounds = starts[:, None] + later + ends[None, :]
        best = max(best, float(bounds[later > 0].max(initial=0.0)))
    return best


def _device_weights(problem: Problem) -> list[tuple[BoolArray, FloatArray]]:
    """Find units that must stay on a set of devices, and the weight of time on each device.

    For weights y >= 0 with sum(lanes * y) = 1, every schedule takes at least the sum over units of
    min over devices of y * time: each unit adds its time to one device's lanes, and the makespan
    is at least the weighted mean of the lanes' loads. Devices of one chip share their lanes, which
    then have the weight of the heaviest of them.

    Returns
    -------
    list of (bool array, shape (n_units,), float array, shape (n_devices,))
    """
    cluster = problem.cluster
    sets, set_of = problem.device_sets
    found = []
    for members in np.unique(np.vstack([sets, np.ones(cluster.n_devices, dtype=bool)]), axis=0):
        weight = np.where(members, cluster.speed, 0.0)
        of_lane = np.zeros(cluster.n_devices)
        np.maximum.at(of_lane, cluster.lane_owner, weight)
        weight /= (of_lane * cluster.lanes).sum()
        found.append(((sets <= members).all(axis=1)[set_of], weight))
    return found


def _work_bound_us(problem: Problem, unit_us: FloatArray) -> float:
    """Bound by the work of all units that must stay on a set of devices, for every such set."""
    best = 0.0
    for inside, weight in _device_weights(problem):
        best = max(best, float(_least(unit_us[inside], weight).sum()))
    return best


def _count_bound_us(problem: Problem, time_us: FloatArray) -> float:
    """Bound by the number of long ops that must share a lane, on every set of devices."""
    cluster, best = problem.cluster, 0.0
    for inside, weight in _device_weights(problem):
        members = weight > 0
        lanes = int(cluster.lanes[np.unique(cluster.lane_owner[members])].sum())
        least_us = time_us[inside[problem.unit]][:, members].min(axis=1)
        total_us = np.append(0.0, np.sort(least_us)[::-1].cumsum())
        taken = np.arange(lanes + 1, len(total_us), lanes)
        shortest_us = total_us[taken] - total_us[taken - np.arange(2, len(taken) + 2)]
        best = max(best, float(shortest_us.max(initial=0.0)))
    return best


def _least(time_us: FloatArray, weight: FloatArray) -> FloatArray:
    """Find the least weighted time of each row over the devices that have a weight."""
    members = weight > 0
    least: FloatArray = (time_us[:, members] * weight[members]).min(axis=1)
    return least


def _price_bound_us(problem: Problem, unit_us: FloatArray) -> float:
    """Bound by all work on all devices with enough memory, at the prices of the linear program.

    Parameters
    ----------
    unit_us : float array, shape (n_units, n_devices)
        Time of each unit; inf where it is not allowed.
    """
    cluster, held = problem.cluster, problem.unit_persistent_bytes.astype(np.float64)
    cell = _cells(problem, unit_us, held)
    n_cells = int(cell.max()) + 1
    cell_us, cell_held = _sums(cell, unit_us, n_cells), _sums(cell, held[:, None], n_cells)[:, 0]
    prices = _prices(problem, cell_us, cell_held)
    if prices is None:
        return 0.0
    per_us, per_byte = prices
    cost = np.full(problem.n_units, np.inf)
    for d in range(cluster.n_devices):  # if time has no price, an infinite time costs nothing
        there = np.isfinite(unit_us[:, d])
        paid = per_us[d] * unit_us[there, d] + per_byte[d] * held[there]
        cost[there] = np.minimum(cost[there], paid)
    # If memory is scarce, the two sums are large and nearly equal; allow for rounding errors.
    paid_back = float(per_byte @ cluster.capacity_bytes)
    return float(cost.sum()) - paid_back * (1 + 1e-12)


def _cells(problem: Problem, unit_us: FloatArray, held: FloatArray) -> IntArray:
    """Find the cell of each unit; within a cell, times and bytes are nearly proportional."""
    kinds = [problem.cluster.kind == kind for kind in np.unique(problem.cluster.kind)]
    possible = np.isfinite(unit_us)
    fastest = [unit_us[:, kind].min(axis=1) for kind in kinds]
    cell = problem.device_sets[1]
    # The number of devices that are large enough identifies them.
    keys = [possible.sum(axis=1)]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = [column / fastest[0] for column in fastest[1:]]
        ratios.append(held / unit_us.min(axis=1))
        for ratio in ratios:
            steps = np.nan_to_num(2 * np.log2(ratio), nan=0.0, posinf=99.0, neginf=-99.0)
            keys.append(np.rint(np.clip(steps, -99, 99)).astype(np.int64) + 99)
    for key in keys:
        cell = np.unique(cell * 257 + key, return_inverse=True)[1]
    return cell


def _prices(
    problem: Problem, cell_us: FloatArray, held: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    """Find the prices of each device's time and memory; none if no assignment fits.

    Parameters
    ----------
    cell_us, held : float arrays, shapes (n_cells, n_devices) and (n_cells,)
        Time of each cell on each device, inf where it is not allowed, and its bytes.
    """
    cluster = problem.cluster
    n_devices, n_cells = cluster.n_devices, len(held)
    cells, devices = np.nonzero(np.isfinite(cell_us))
    scale_us = max(float(cell_us[cells, devices].max()), 1e-9)
    chips = np.unique(cluster.lane_owner)
    program = ModelBuilder()
    share, most = program.variables(len(cells)), program.variables(1, cost=1.0)
    # The devices of one chip share its time.
    work = (cluster.lane_owner[devices], cell_us[cells, devices] / scale_us, share)
    program.sums(n_devices, [work, (chips, -cluster.lanes[chips], most)], upper=0.0)
    held_share = held[cells] / cluster.capacity_bytes[devices]
    program.sums(n_devices, [(devices, held_share, share)], upper=1.0)
    program.sums(n_cells, [(cells, 1.0, share)], lower=1.0, upper=1.0)
    solver = give_to_highs(program.model())
    solver.run()
    if solver.modelStatusToString(solver.getModelStatus()) != "Optimal":
        return None
    dual = np.maximum(-np.array(solver.getSolution().row_dual[: 2 * n_devices]), 0.0)
    of_chip = dual[:n_devices]
    total = float(of_chip @ cluster.lanes)
    if total <= 0:
        return None
    per_byte = dual[n_devices:] * scale_us / cluster.capacity_bytes / total
    return of_chip[cluster.lane_owner] / total, per_byte
