"""The kernels of batch merging in plain Python."""

import numpy as np

from enplace.coarsen.batches import MEMORY_SHARE, TIED_SHARE, _Levels


class Ties:
    """Sets of vertices that share a device, joined unless they are too much for one."""

    def __init__(self, graph, limits):
        self.graph, self.limits = graph, limits
        self.members = {tie: {tie} for tie in graph.tie.tolist()}

    def join(self, u, v):
        one, other = self.members[int(self.graph.tie[u])], self.members[int(self.graph.tie[v])]
        if one is other:
            return True
        inside = np.isin(self.graph.tie, list(one | other))
        if (
            self.graph.work_us[inside].sum() > TIED_SHARE * self.limits.work_us
            or self.graph.memory_bytes[inside].sum() > self.limits.memory_bytes / MEMORY_SHARE
        ):
            return False
        one |= other
        for tie in other:
            self.members[tie] = one
        return True


def edges_of(graph):
    return list(zip(graph.source.tolist(), graph.target.tolist(), strict=True))


def fill_slowly(graph, height, by_height, limits):
    """Merge each vertex into the one before while both fit together."""
    root, ties, last = list(range(len(height))), Ties(graph, limits), None
    for v in by_height.tolist():
        merged = [w for w in range(len(root)) if root[w] == last] if last is not None else []
        if (
            merged
            and sum(root[w] != w for w in range(len(root))) < limits.n_merged
            and height[last] == height[v]
            and graph.device_set[last] == graph.device_set[v]
            and graph.work_us[[*merged, v]].sum() <= limits.work_us
            and graph.memory_bytes[[*merged, v]].sum() <= limits.memory_bytes
            and ties.join(last, v)
        ):
            root[v] = last
        else:
            last = v
    return np.array(root)


def match_slowly(graph, neighbours, levels, by_rank, limits):
    """Choose edges by the corrected Theorem 3.5, best first."""
    edges, height, ties = edges_of(graph), neighbours.height, Ties(graph, limits)
    work, top, bottom = graph.work_us, levels.top_us, levels.bottom_us
    chosen = []
    for number in by_rank.tolist():
        u, v = edges[number]
        pairs = [edges[other] for other in chosen]
        out_of_u, into_v = [b for a, b in edges if a == u], [a for a, b in edges if b == v]
        path_us = (
            max(top[u], top[v] - work[u]) + work[u] + work[v] + max(bottom[v], bottom[u] - work[v])
        )
        if (
            len(chosen) < limits.n_merged
            and not {u, v} & {end for pair in pairs for end in pair}
            and graph.device_set[u] == graph.device_set[v]
            and work[u] + work[v] <= limits.work_us
            and graph.memory_bytes[u] + graph.memory_bytes[v] <= limits.memory_bytes
            and path_us <= limits.path_us
            and (
                len(out_of_u) == 1
                or len(into_v) == 1
                or height[v] <= height[u] + 1
                or all(height[w] > height[v] for w in out_of_u if w != v)
            )
            and not any(height[b] == height[v] and (a in into_v or b in out_of_u) for a, b in pairs)
            and ties.join(u, v)
        ):
            chosen.append(number)
    return np.array(chosen, dtype=np.int64)


def heights_slowly(order, in_ptr, producer):
    """Count the vertices on the longest path that ends at each vertex."""
    height = {}
    for v in order.tolist():
        height[v] = 1 + max((height[u] for u in producer[in_ptr[v] : in_ptr[v + 1]]), default=0)
    return np.array([height[v] for v in range(len(order))], dtype=np.int64)


def find_levels_slowly(graph, neighbours):
    """Find the most work before and after each vertex on any path."""
    top, bottom = np.zeros(len(graph.work_us)), np.zeros(len(graph.work_us))
    for v in neighbours.order.tolist():
        top[v] = max((top[a] + graph.work_us[a] for a, b in edges_of(graph) if b == v), default=0)
    for v in neighbours.order.tolist()[::-1]:
        after = [bottom[b] + graph.work_us[b] for a, b in edges_of(graph) if a == v]
        bottom[v] = max(after, default=0)
    return _Levels(top, bottom)


def merge_chains_slowly(order, idle, device_set, source, target):
    """Join each op with its only producer, then with its only consumer, if nothing is lost."""
    root = list(range(len(order)))
    edges = {(a, b) for a, b in zip(source.tolist(), target.tolist(), strict=True)}
    for op in order.tolist():
        producers = [a for a, b in edges if b == op]
        if len(producers) == 1 and device_set[producers[0]] == device_set[op]:
            alone = [b for a, b in edges if a == producers[0]] == [op]
            if idle[op] or alone:
                root[op] = root[producers[0]]
    joined = {(root[a], root[b]) for a, b in edges if root[a] != root[b]}
    second = list(range(len(order)))
    for op in reversed(order.tolist()):
        consumers = [b for a, b in joined if a == op]
        is_idle = all(idle[member] for member in range(len(order)) if root[member] == op)
        alike = [c for c in consumers if device_set[c] == device_set[op]]
        if root[op] == op and is_idle and len(consumers) == len(alike) == 1:
            second[op] = second[consumers[0]]
    numbers = {}
    return np.array([numbers.setdefault(second[top], len(numbers)) for top in root])


def tie_slowly(left, right, work_us, allowed, limit_us):
    """Join pairs of units, the first pair first, unless they grow too large."""
    sets = {unit: {unit} for unit in range(len(work_us))}
    for a, b in zip(left.tolist(), right.tolist(), strict=True):
        one, other = sets[a], sets[b]
        fits = work_us[list(one)].sum() + work_us[list(other)].sum() <= limit_us
        if one is not other and fits and (allowed[a] == allowed[b]).all():
            one |= other
            sets |= dict.fromkeys(other, one)
    return np.array([min(sets[unit]) for unit in range(len(work_us))])


def peaks_slowly(problem, group, order):
    """Return the most bytes alive at once in each group; tensors that leave it do not count."""
    profile = problem.profile

    def uses(tensor, ops):
        read = profile.edge_op[profile.edge_tensor == tensor].tolist()
        held = profile.hold_op[profile.hold_tensor == tensor].tolist()
        for other in np.flatnonzero(profile.tensor_base == tensor).tolist():
            if profile.tensor_op[other] in ops:
                read, held = (a + b for a, b in zip((read, held), uses(other, ops), strict=True))
        return read, held

    peaks = []
    for number in range(group.max() + 1):
        ops = [op for op in order.tolist() if group[op] == number]
        alive = []
        for tensor in np.flatnonzero(np.isin(profile.tensor_op, ops)).tolist():
            users, held = uses(tensor, ops)
            if set(users) <= set(ops):
                made = ops.index(int(profile.tensor_op[tensor]))
                until = [ops.index(op) for op in (*users, *held) if op in ops]
                freed = max([made, *until])
                alive.append((made, freed, int(profile.held_bytes[tensor])))
        peaks.append(
            max(
                int(profile.temporary_bytes[op])
                + sum(size for made, freed, size in alive if made <= at <= freed)
                for at, op in enumerate(ops)
            )
        )
    return peaks
