"""The kernels of batch merging in plain Python."""

import numpy as np

from enplace.coarsen.batches import MEMORY_SHARE, TIED_SHARE


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
