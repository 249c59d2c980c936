"""All schedules of a small problem, one placement after another, compiled.

The jobs of a placement are its ops and its transfers. A schedule is *semi-active* if each job
starts as soon as it is ready, its device or its channels have ended the jobs before it, and its
device has started the op before it. Those of all plans are, whatever their policies, so a bound for
all semi-active schedules holds for every plan.

Jobs are added in the order of their starts, so the memory at any time before the latest start is
known. Of jobs that start at one instant and do not affect each other, only one order is tried. If
all tensors of a placement fit at once, only *active* schedules count: those in which no job could
start earlier without delaying another.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import kernel, loop, step
from enplace.machine.critical_path import share_channel
from enplace.machine.layout import Machine, transfer_us
from enplace.values.arrays import BoolArray, FloatArray, IntArray

ROUNDING = 1e-9
"""Share by which sums of the same times may differ."""


class Jobs(NamedTuple):
    """The jobs of a placement: all ops, then its transfers.

    Attributes
    ----------
    device : int array, shape (n_ops,)
    total : int array, shape (1,)
        How many jobs there are.
    transfer_of : int array, shape (n_tensors, n_devices)
        The job that sends a tensor to a device; -1 if none does.
    tensor, target : int arrays, shape (n_ops + n_edges,)
        What a transfer sends, and where to.
    reader : int array, shape (n_ops + n_edges,)
        The only consumer of a transfer; -1 if there are several.
    before : int array, shape (n_edges,)
        The job that delivers each input, in the order of the machine's ``in_tensor``.
    duration_us, tail_us : float arrays, shape (n_ops + n_edges,)
        How long a job takes, and the longest path from its start to the end.
    """

    device: IntArray
    total: IntArray
    transfer_of: IntArray
    tensor: IntArray
    target: IntArray
    reader: IntArray
    before: IntArray
    duration_us: FloatArray
    tail_us: FloatArray


class Path(NamedTuple):
    """The jobs added so far, and what is left to try after each of them.

    Attributes
    ----------
    depth : int array, shape (1,)
        How many jobs have been added; -1 before and after the search of a placement.
    chosen : int array, shape (most jobs,)
        The jobs added, by start.
    start_us, finish_us, head_us : float arrays, shape (most jobs,)
        When a job runs, -1 if it has not been added, and its earliest start then.
    choice, choice_us : arrays, shape (most jobs + 1, most jobs)
        At each depth, the jobs that may come next, and when they would start.
    n_choices, at : int arrays, shape (most jobs + 1,)
    lane_us, device_us, channel_us : float arrays, shapes (most jobs + 1, lanes, devices, channels)
        At each depth, when lanes and channels are free, and the latest start on each device.
    latest : int array, shape (most jobs + 1, n_channels)
        At each depth, the latest transfer with one consumer on each channel; -1 if there is none.
    after : int array, shape (most jobs + 1, 2 * n_ops)
        At each depth, a bit for each op that comes after an op in every plan whose channels follow
        its order; then the same for plans whose devices do so, too.
    in_order, has_waited : bool arrays, shape (most jobs + 1, 2)
        At each depth, whether there may be such plans; and whether a transfer has waited though its
        channel was free, or an op though its device was: then no other plan runs like this.
    serves_alone : bool array, shape (1,)
        Whether no transfer takes more than one channel.
    used_bytes : int array, shape (n_devices,)
        Scratch.
    left_us, first_us, last_us : float arrays, shape (n_devices + n_channels,)
        Scratch: of the jobs to come on a chip or channel, their sum, least head and least tail.
    left : int array, shape (n_devices + n_channels,)
        Scratch: how many they are.
    """

    depth: IntArray
    chosen: IntArray
    start_us: FloatArray
    finish_us: FloatArray
    head_us: FloatArray
    choice: IntArray
    choice_us: FloatArray
    n_choices: IntArray
    at: IntArray
    lane_us: FloatArray
    device_us: FloatArray
    channel_us: FloatArray
    latest: IntArray
    after: IntArray
    in_order: BoolArray
    has_waited: BoolArray
    serves_alone: BoolArray
    used_bytes: IntArray
    left_us: FloatArray
    first_us: FloatArray
    last_us: FloatArray
    left: IntArray


def new_jobs(m: Machine) -> Jobs:
    """Allocate the jobs of a placement."""
    n_ops, n_edges, n_tensors = len(m.time_us), len(m.edge_op), len(m.tensor_op)
    most = n_ops + n_edges
    return Jobs(
        device=np.zeros(n_ops, np.int64),
        total=np.zeros(1, np.int64),
        transfer_of=np.zeros((n_tensors, len(m.lanes)), np.int64),
        tensor=np.zeros(most, np.int64),
        target=np.zeros(most, np.int64),
        reader=np.zeros(most, np.int64),
        before=np.zeros(n_edges, np.int64),
        duration_us=np.zeros(most),
        tail_us=np.zeros(most),
    )


def new_path(m: Machine) -> Path:
    """Allocate a search through the orders of a placement."""
    most, n_devices = len(m.time_us) + len(m.edge_op), len(m.lanes)
    rows, n_resources = most + 1, n_devices + m.n_channels
    return Path(
        depth=np.full(1, -1),
        chosen=np.zeros(most, np.int64),
        start_us=np.zeros(most),
        finish_us=np.zeros(most),
        head_us=np.zeros(most),
        choice=np.zeros((rows, most), np.int64),
        choice_us=np.zeros((rows, most)),
        n_choices=np.zeros(rows, np.int64),
        at=np.zeros(rows, np.int64),
        lane_us=np.zeros((rows, int(m.lane_end.max()))),
        device_us=np.zeros((rows, n_devices)),
        channel_us=np.zeros((rows, m.n_channels)),
        latest=np.zeros((rows, m.n_channels), np.int64),
        after=np.zeros((rows, 2 * len(m.time_us)), np.int64),
        in_order=np.zeros((rows, 2), np.bool_),
        has_waited=np.zeros((rows, 2), np.bool_),
        serves_alone=np.array([np.diff(m.route_ptr).max(initial=0) <= 1]),
        used_bytes=np.zeros(n_devices, np.int64),
        left_us=np.zeros(n_resources),
        first_us=np.zeros(n_resources),
        last_us=np.zeros(n_resources),
        left=np.zeros(n_resources, np.int64),
    )


@kernel
def list_placements(
    m: Machine,
    order: IntArray,
    twin: IntArray,
    spends: FloatArray,
    most: FloatArray,
    jobs: Jobs,
    path: Path,
    limit_us: float,
    found: IntArray,
    bound_us: FloatArray,
    work: IntArray,
) -> int:  # pragma: no cover - compiled
    """List the placements that keep all constraints and may take no longer than a limit.

    Parameters
    ----------
    order : int array, shape (n_units,)
        The units in the order in which they are placed.
    twin : int array, shape (n_devices,)
        The previous device that is exactly like each, or -1. One is used only after it.
    spends, most : float arrays, shapes (n_units, n_devices, n_budgets) and (n_budgets,)
    found, bound_us : arrays, shapes (many, n_units) and (many,), written
        The device of each unit, and a lower bound on the step time.
    work : int array, shape (1,)
        How many steps are left.

    Returns
    -------
    int
        How many there are; -1 if they are too many, or take too long to find.
    """
    n_units, n_devices = len(order), len(m.lanes)
    device, n_used = np.full(n_units, -1), np.zeros(n_devices, np.int64)
    count, at = 0, 0
    while at >= 0:
        unit = order[at]
        if device[unit] >= 0:
            n_used[device[unit]] -= 1
        device[unit] += 1
        if device[unit] == n_devices:
            device[unit] = -1
            at -= 1
            continue
        d = device[unit]
        n_used[d] += 1
        if not m.allowed[unit, d] or (twin[d] >= 0 and n_used[d] == 1 and n_used[twin[d]] == 0):
            continue
        work[0] -= 1
        if work[0] < 0:
            return -1
        if not _may_fit(m, device, spends, most, path.used_bytes):
            continue
        if _least_us(m, device, jobs, path) > limit_us:
            continue
        if at + 1 < n_units:
            at += 1
            continue
        list_jobs(m, device, jobs)
        _start_path(m, jobs, path)
        bound = _look_ahead(m, jobs, path, 0, 0.0, False)
        path.depth[0] = -1
        if bound <= limit_us:
            if count == len(found):
                return -1
            for each in range(n_units):
                found[count, each] = device[each]
            bound_us[count] = bound
            count += 1
    return count


@loop
def _may_fit(
    m: Machine, device: IntArray, spends: FloatArray, most: FloatArray, used: IntArray
) -> bool:  # pragma: no cover - compiled
    """Whether the units placed so far keep all budgets, and each op fits while it runs."""
    used[:] = 0
    for op in range(len(m.unit)):
        if device[m.unit[op]] >= 0:
            used[device[m.unit[op]]] += m.persistent_bytes[op]
    for op in range(len(m.unit)):
        d = device[m.unit[op]]
        if d >= 0 and used[d] + _running_bytes(m, op, d) > m.capacity_bytes[d]:
            return False
    for b in range(len(most)):
        spent = 0.0
        for unit in range(len(device)):
            if device[unit] >= 0:
                spent += spends[unit, device[unit], b]
        if spent > most[b]:
            return False
    return True


@loop
def _running_bytes(m: Machine, op: int, device: int) -> int:  # pragma: no cover - compiled
    """Count the bytes that an op holds while it runs, with its inputs and outputs.

    0 if it takes no time: its memory may be free again before anything else runs.
    """
    held = 0
    if m.time_us[op, device] > 0.0:
        held += m.temporary_bytes[op]
        for tensor in range(m.tensor_ptr[op], m.tensor_ptr[op + 1]):
            held += m.held_bytes[tensor]
        for e in range(m.in_ptr[op], m.in_ptr[op + 1]):
            is_first = True
            for other in range(m.in_ptr[op], e):
                is_first &= m.in_tensor[other] != m.in_tensor[e]
            if is_first:
                held += m.held_bytes[m.in_tensor[e]]
    return held


@kernel
def least_step_us(m: Machine, jobs: Jobs, path: Path) -> float:  # pragma: no cover - compiled
    """Bound the step time of all placements."""
    return _least_us(m, np.full(len(m.allowed), -1), jobs, path)


@loop
def _least_us(
    m: Machine, device: IntArray, j: Jobs, s: Path
) -> float:  # pragma: no cover - compiled
    """Bound the step time of all placements that begin with one of some units.

    Units that are not placed take the least time of any device, and tensors reach them in no time.
    """
    longest, total, n_lanes = 0.0, 0.0, 0
    s.left_us[:] = 0.0
    for op in m.topological_order:
        here, ready, run_us = device[m.unit[op]], 0.0, np.inf
        for e in range(m.in_ptr[op], m.in_ptr[op + 1]):
            tensor = m.in_tensor[e]
            maker = m.tensor_op[tensor]
            there, sent = device[m.unit[maker]], 0.0
            if here >= 0 and there >= 0 and here != there:
                sent = transfer_us(m, m.tensor_bytes[tensor], there, here)
            ready = max(ready, s.head_us[maker] + sent)
        for d in range(len(m.lanes)):
            if d == here or (here < 0 and m.allowed[m.unit[op], d]):
                run_us = min(run_us, m.time_us[op, d])
        s.head_us[op] = ready + run_us  # of the end, here
        longest = max(longest, s.head_us[op])
        total += run_us
        if here >= 0:
            s.left_us[m.lane_owner[here]] += run_us
    for d in range(len(m.lanes)):
        if m.lane_owner[d] == d:
            n_lanes += m.lanes[d]
            longest = max(longest, s.left_us[d] / m.lanes[d])
    return max(longest, total / n_lanes)


@loop
def list_jobs(m: Machine, unit_device: IntArray, j: Jobs) -> None:  # pragma: no cover - compiled
    """List the jobs of a placement, and their tails."""
    n_ops = len(j.device)
    for op in range(n_ops):
        j.device[op] = unit_device[m.unit[op]]
        j.duration_us[op] = m.time_us[op, j.device[op]]
    j.transfer_of[:] = -1
    n = n_ops
    for tensor in range(len(m.tensor_op)):
        home = j.device[m.tensor_op[tensor]]
        for edge in range(m.edge_ptr[tensor], m.edge_ptr[tensor + 1]):
            to = j.device[m.edge_op[edge]]
            if to != home and j.transfer_of[tensor, to] < 0:
                j.transfer_of[tensor, to] = n
                j.tensor[n], j.target[n], j.reader[n] = tensor, to, m.edge_op[edge]
                j.duration_us[n] = transfer_us(m, m.tensor_bytes[tensor], home, to)
                n += 1
            elif to != home and j.reader[j.transfer_of[tensor, to]] != m.edge_op[edge]:
                j.reader[j.transfer_of[tensor, to]] = -1
    j.total[0] = n
    for op in range(n_ops):
        for e in range(m.in_ptr[op], m.in_ptr[op + 1]):
            job = j.transfer_of[m.in_tensor[e], j.device[op]]
            j.before[e] = job if job >= 0 else m.tensor_op[m.in_tensor[e]]
    for job in range(n):
        j.tail_us[job] = j.duration_us[job]
    for at in range(n_ops - 1, -1, -1):
        op = m.topological_order[at]
        for tensor in range(m.tensor_ptr[op], m.tensor_ptr[op + 1]):
            for d in range(len(m.lanes)):
                job = j.transfer_of[tensor, d]
                if job >= 0:
                    j.tail_us[op] = max(j.tail_us[op], j.duration_us[op] + j.tail_us[job])
        for e in range(m.in_ptr[op], m.in_ptr[op + 1]):
            job = j.before[e]
            j.tail_us[job] = max(j.tail_us[job], j.duration_us[job] + j.tail_us[op])


@loop
def _all_fits(m: Machine, j: Jobs, used: IntArray) -> bool:  # pragma: no cover - compiled
    """Whether everything fits at once; then the order does not matter for the memory."""
    used[:] = 0
    for op in range(len(j.device)):
        used[j.device[op]] += m.persistent_bytes[op] + m.temporary_bytes[op]
    for tensor in range(len(m.tensor_op)):
        used[j.device[m.tensor_op[tensor]]] += m.held_bytes[tensor]
        for d in range(len(used)):
            if j.transfer_of[tensor, d] >= 0:
                used[d] += m.copy_bytes[tensor]
    fits = True
    for d in range(len(used)):
        fits &= used[d] <= m.capacity_bytes[d]
    return fits


@loop
def _start_path(m: Machine, j: Jobs, s: Path) -> None:  # pragma: no cover - compiled
    """Add no job yet."""
    s.depth[0] = 0
    s.lane_us[0, :], s.device_us[0, :], s.channel_us[0, :] = 0.0, 0.0, 0.0
    s.latest[0, :], s.after[0, :], s.in_order[0, :], s.has_waited[0, :] = -1, 0, True, False
    s.start_us[:], s.finish_us[:] = -1.0, -1.0


@kernel
def find_schedule(
    m: Machine,
    device: IntArray,
    jobs: Jobs,
    path: Path,
    limit_us: float,
    work: IntArray,
) -> bool:  # pragma: no cover - compiled
    """Find the next schedule of a placement that fits and takes no longer than a limit.

    Parameters
    ----------
    device : int array, shape (n_units,)
    path : Path
        If its depth is -1, the search begins; otherwise it continues after the last schedule.

    Returns
    -------
    bool
        Whether there is one; none is sought any more if all work is done.
    """
    if path.depth[0] < 0:
        list_jobs(m, device, jobs)
        _start_path(m, jobs, path)
        bound_us = _look_ahead(m, jobs, path, 0, 0.0, _all_fits(m, jobs, path.used_bytes))
        if bound_us > limit_us:
            path.depth[0] = -1
            return False
    else:
        _drop_job(path)
    return _continue(m, jobs, path, limit_us, _all_fits(m, jobs, path.used_bytes), work)


@loop
def _drop_job(s: Path) -> None:  # pragma: no cover - compiled
    """Remove the job that was added last."""
    s.depth[0] -= 1
    if s.depth[0] >= 0:
        job = s.chosen[s.depth[0]]
        s.start_us[job] = s.finish_us[job] = -1.0


@loop
def _continue(
    m: Machine, j: Jobs, s: Path, limit_us: float, is_loose: bool, work: IntArray
) -> bool:  # pragma: no cover - compiled
    """Go through the orders of the jobs until all have been added."""
    while s.depth[0] >= 0 and work[0] >= 0:
        depth = s.depth[0]
        at = s.at[depth]
        if at == s.n_choices[depth]:
            _drop_job(s)
            continue
        s.at[depth] += 1
        job, start = s.choice[depth, at], s.choice_us[depth, at]
        now = s.start_us[s.chosen[depth - 1]] if depth > 0 else 0.0
        if start + j.tail_us[job] > limit_us:
            continue
        if not is_loose and start > now and not _fits_at(m, j, s, now):
            continue
        work[0] -= 1
        _add_job(m, j, s, job, start)
        if s.depth[0] == j.total[0]:
            fits = is_loose or _fits_at(m, j, s, start)
            if fits and _may_be_planned(s, s.depth[0]):
                return True
            _drop_job(s)
        elif _look_ahead(m, j, s, s.depth[0], start, is_loose) > limit_us:
            _drop_job(s)
    return False


@loop
def _add_job(
    m: Machine, j: Jobs, s: Path, job: int, start: float
) -> None:  # pragma: no cover - compiled
    """Add a job that starts at a time when its device, or its channels, are free."""
    n_ops, depth = len(j.device), s.depth[0]
    finish = start + j.duration_us[job]
    s.chosen[depth], s.start_us[job], s.finish_us[job] = job, start, finish
    for rows in (s.lane_us, s.device_us, s.channel_us):
        for i in range(rows.shape[1]):  # copying a row at once needs memory
            rows[depth + 1, i] = rows[depth, i]
    for marks in (s.latest, s.after):
        for i in range(marks.shape[1]):
            marks[depth + 1, i] = marks[depth, i]
    for flags in (s.in_order, s.has_waited):
        for i in range(2):
            flags[depth + 1, i] = flags[depth, i]
    if job < n_ops:
        d = j.device[job]
        s.device_us[depth + 1, d] = start
        for at in range(depth - 1, -1, -1):
            if s.chosen[at] < n_ops and j.device[s.chosen[at]] == d:
                _follow(s, depth + 1, 1, n_ops, s.chosen[at], job, True)
                break
        if finish > start:
            first = m.lane_ptr[d]
            for lane in range(m.lane_ptr[d], m.lane_end[d]):
                if s.lane_us[depth, lane] < s.lane_us[depth, first]:
                    first = lane
            s.lane_us[depth + 1, first] = finish
    else:
        link = j.device[m.tensor_op[j.tensor[job]]] * len(m.lanes) + j.target[job]
        for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
            s.channel_us[depth + 1, m.route[hop]] = finish
            if j.reader[job] >= 0:
                previous = s.latest[depth + 1, m.route[hop]]
                s.latest[depth + 1, m.route[hop]] = job
                if previous >= 0:
                    for of in range(2):
                        one, other = j.reader[previous], j.reader[job]
                        _follow(s, depth + 1, of, n_ops, one, other, previous < job)
    s.depth[0] += 1


@loop
def _follow(
    s: Path, depth: int, of: int, n_ops: int, first: int, then: int, may_be_same: bool
) -> None:  # pragma: no cover - compiled
    """Note that an op must come after another in the order of a plan."""
    if first == then:
        s.in_order[depth, of] &= may_be_same
        return
    begin, bit = of * n_ops, np.int64(1)
    s.in_order[depth, of] &= (s.after[depth, begin + then] >> first) & bit == 0
    behind = s.after[depth, begin + then] | (bit << then)
    for op in range(n_ops):
        if op == first or (s.after[depth, begin + op] >> first) & bit == 1:
            s.after[depth, begin + op] |= behind


@loop
def _look_ahead(
    m: Machine, j: Jobs, s: Path, depth: int, now: float, is_loose: bool
) -> float:  # pragma: no cover - compiled
    """Find the jobs that may come next, and bound the step time of all schedules from here.

    The bound is infinite if a job can no longer start as soon as it should.
    """
    n_ops, n_devices = len(j.device), len(m.lanes)
    s.left[:], s.left_us[:], s.first_us[:], s.last_us[:] = 0, 0.0, np.inf, np.inf
    s.n_choices[depth], s.at[depth] = 0, 0
    bound, first_end = 0.0, np.inf
    for at in range(n_ops):
        op = m.topological_order[at]
        if s.start_us[op] < 0.0:
            ready, is_ready = 0.0, True
            for e in range(m.in_ptr[op], m.in_ptr[op + 1]):
                job = j.before[e]
                if s.start_us[job] >= 0.0:
                    ready = max(ready, s.finish_us[job])
                else:
                    is_ready = False
                    ready = max(ready, s.head_us[job] + j.duration_us[job])
            d = j.device[op]
            lane_us = np.inf
            for lane in range(m.lane_ptr[d], m.lane_end[d]):
                lane_us = min(lane_us, s.lane_us[depth, lane])
            ready = max(ready, lane_us, s.device_us[depth, d])
            s.head_us[op] = max(ready, now)
            bound = max(bound, s.head_us[op] + j.tail_us[op])
            _count(j, s, m.lane_owner[d], op)
            if is_ready:
                s.has_waited[depth, 1] |= ready < now
                if ready >= now:
                    first_end = min(first_end, ready + j.duration_us[op])
                    _offer(j, s, depth, op, ready)
        for tensor in range(m.tensor_ptr[op], m.tensor_ptr[op + 1]):
            for to in range(n_devices):
                job = j.transfer_of[tensor, to]
                if job < 0 or s.start_us[job] >= 0.0:
                    continue
                is_ready = s.start_us[op] >= 0.0
                ready = s.finish_us[op] if is_ready else s.head_us[op] + j.duration_us[op]
                link = j.device[op] * n_devices + to
                for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
                    ready = max(ready, s.channel_us[depth, m.route[hop]])
                s.head_us[job] = max(ready, now)
                bound = max(bound, s.head_us[job] + j.tail_us[job])
                for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
                    _count(j, s, n_devices + m.route[hop], job)
                if is_ready:
                    s.has_waited[depth, 0] |= ready < now
                    if ready >= now:
                        first_end = min(first_end, ready + j.duration_us[job])
                        _offer(j, s, depth, job, ready)
    for d in range(n_devices + m.n_channels):
        if s.left_us[d] > 0.0:
            n_lanes = m.lanes[d] if d < n_devices else 1
            bound = max(bound, s.first_us[d] + s.left_us[d] / n_lanes + s.last_us[d])
    if not _may_be_planned(s, depth):
        return np.inf
    if (s.has_waited[depth, 0] or s.has_waited[depth, 1]) and _is_stuck(m, j, s, depth, now):
        return np.inf
    _prune(m, j, s, depth, now, first_end if is_loose else np.inf)
    return bound


@step
def _may_be_planned(s: Path, depth: int) -> bool:  # pragma: no cover - compiled
    """Whether a plan may run like the jobs so far."""
    # A transfer over several channels may wait for one of them, and others wait behind it.
    of = int(s.has_waited[depth, 1])
    return not s.serves_alone[0] or not s.has_waited[depth, 0] or s.in_order[depth, of]


@loop
def _count(j: Jobs, s: Path, resource: int, job: int) -> None:  # pragma: no cover - compiled
    """Count a job to come on its chip or channel."""
    s.left[resource] += 1
    if j.duration_us[job] > 0.0:
        s.left_us[resource] += j.duration_us[job]
        s.first_us[resource] = min(s.first_us[resource], s.head_us[job])
        s.last_us[resource] = min(s.last_us[resource], j.tail_us[job] - j.duration_us[job])


@loop
def _offer(
    j: Jobs, s: Path, depth: int, job: int, start: float
) -> None:  # pragma: no cover - compiled
    """Insert a job into the choices: by start, those with the longest tail first."""
    at = s.n_choices[depth]
    while at > 0 and (
        s.choice_us[depth, at - 1] > start
        or (s.choice_us[depth, at - 1] == start and _is_before(j, job, s.choice[depth, at - 1]))
    ):
        s.choice[depth, at] = s.choice[depth, at - 1]
        s.choice_us[depth, at] = s.choice_us[depth, at - 1]
        at -= 1
    s.choice[depth, at], s.choice_us[depth, at] = job, start
    s.n_choices[depth] += 1


@loop
def _is_before(j: Jobs, one: int, other: int) -> bool:  # pragma: no cover - compiled
    """Whether a job comes first of two that start at one instant and do not affect each other."""
    if j.tail_us[one] != j.tail_us[other]:
        return bool(j.tail_us[one] > j.tail_us[other])
    return one < other


@loop
def _is_stuck(m: Machine, j: Jobs, s: Path, depth: int, now: float) -> bool:  # pragma: no cover
    """Whether a job that should have started has nothing left to wait for."""
    n_ops, n_devices = len(j.device), len(m.lanes)
    for job in range(j.total[0]):
        if s.start_us[job] >= 0.0 or s.head_us[job] > now:
            continue
        stuck = True
        if job < n_ops:
            for e in range(m.in_ptr[job], m.in_ptr[job + 1]):
                stuck &= s.start_us[j.before[e]] >= 0.0
            stuck &= s.left[m.lane_owner[j.device[job]]] == 1
        else:
            maker = m.tensor_op[j.tensor[job]]
            stuck &= s.start_us[maker] >= 0.0
            link = j.device[maker] * n_devices + j.target[job]
            for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
                stuck &= s.left[n_devices + m.route[hop]] == 1
        for at in range(s.n_choices[depth]):
            stuck &= s.choice[depth, at] != job
        if stuck:
            return True
    return False


@loop
def _prune(
    m: Machine, j: Jobs, s: Path, depth: int, now: float, first_end: float
) -> None:  # pragma: no cover - compiled
    """Keep the choices that lead to schedules not found elsewhere.

    Nothing starts after another job could have ended, if memory does not matter.
    """
    last = s.chosen[depth - 1] if depth > 0 else -1
    n = 0
    for at in range(s.n_choices[depth]):
        job, start = s.choice[depth, at], s.choice_us[depth, at]
        if start > first_end:
            continue
        if (
            last >= 0
            and start == now
            and _is_before(j, job, last)
            and not _affects(m, j, last, job)
        ):
            continue
        s.choice[depth, n], s.choice_us[depth, n] = job, start
        n += 1
    s.n_choices[depth] = n


@loop
def _affects(m: Machine, j: Jobs, one: int, other: int) -> bool:  # pragma: no cover - compiled
    """Whether a job delivers to another, or shares a chip or a channel with it."""
    n_ops, n_devices = len(j.device), len(m.lanes)
    if other < n_ops:
        delivers = one < n_ops and m.lane_owner[j.device[one]] == m.lane_owner[j.device[other]]
        for e in range(m.in_ptr[other], m.in_ptr[other + 1]):
            delivers |= j.before[e] == one
        return delivers
    maker = m.tensor_op[j.tensor[other]]
    if one < n_ops:
        return bool(maker == one)
    mine = j.device[m.tensor_op[j.tensor[one]]] * n_devices + j.target[one]
    link = j.device[maker] * n_devices + j.target[other]
    return share_channel(m, mine, link)


@loop
def _fits_at(m: Machine, j: Jobs, s: Path, now: float) -> bool:  # pragma: no cover - compiled
    """Whether all devices fit at a time, if every job to come starts later."""
    used = s.used_bytes
    used[:] = 0
    for op in range(len(j.device)):
        used[j.device[op]] += m.persistent_bytes[op]
        if 0.0 <= s.start_us[op] <= now < s.finish_us[op]:
            used[j.device[op]] += m.temporary_bytes[op]
    for tensor in range(len(m.tensor_op)):
        maker = m.tensor_op[tensor]
        if m.copy_bytes[tensor] == 0 or s.start_us[maker] < 0.0:
            continue
        for d in range(len(used)):
            job = j.transfer_of[tensor, d]
            if job >= 0 and s.start_us[job] >= 0.0 and _is_kept(m, j, s, tensor, d, now):
                used[d] += m.copy_bytes[tensor]
        home = j.device[maker]
        if m.held_bytes[tensor] > 0 and _is_kept(m, j, s, tensor, home, now):
            used[home] += m.held_bytes[tensor]
    fits = True
    for d in range(len(used)):
        fits &= used[d] <= m.capacity_bytes[d]
    return fits


@loop
def _is_kept(
    m: Machine, j: Jobs, s: Path, tensor: int, device: int, now: float
) -> bool:  # pragma: no cover - compiled
    """Whether a device keeps a tensor after a time, or one that lies in its memory."""
    kept = _is_used_after(m, j, s, tensor, device, now)
    for other in m.sharing:
        base = other
        while base >= 0 and base != tensor and j.device[m.tensor_op[base]] == device:
            base = m.tensor_base[base]
        if base == tensor and other != tensor:
            kept |= _is_used_after(m, j, s, other, device, now)
    return kept


@loop
def _is_used_after(
    m: Machine, j: Jobs, s: Path, tensor: int, device: int, now: float
) -> bool:  # pragma: no cover - compiled
    """Whether a tensor is made, on its way or read on a device after a time, or will be."""
    maker = m.tensor_op[tensor]
    if device == j.device[maker]:
        if s.start_us[maker] < 0.0:
            return False  # what its maker reads is kept by that
        if now < s.finish_us[maker]:
            return True
    for d in range(len(m.lanes)):
        job = j.transfer_of[tensor, d]
        concerns = job >= 0 and (d == device or device == j.device[maker])
        if concerns and (s.start_us[job] < 0.0 or now < s.finish_us[job]):
            return True
    return _is_read_after(m, j, s, tensor, device, now)


@loop
def _is_read_after(
    m: Machine, j: Jobs, s: Path, tensor: int, device: int, now: float
) -> bool:  # pragma: no cover - compiled
    """Whether a consumer of a tensor on a device ends after a time, or has not been added."""
    for edge in range(m.edge_ptr[tensor], m.edge_ptr[tensor + 1]):
        op = m.edge_op[edge]
        if j.device[op] == device and (s.start_us[op] < 0.0 or now < s.finish_us[op]):
            return True
    return False
