"""A synthetic training graph as large as the papers' largest, to measure speed."""

from __future__ import annotations

import numpy as np

from enplace.values.profile import CONTROL, IntArray, Profile, make_profile

HEADS = 64
WIDTH = 1024
TOKENS = 2048


def transformer_36k() -> Profile:
    """Make about 36,000 ops, 60,000 edges: 69 layers of 64 heads; forward, backward and update."""
    return transformer(layers=69, heads=HEADS)


def transformer(layers: int, heads: int, seed: int = 0) -> Profile:
    """Make a layered training graph with scopes; the same arguments give the same graph.

    A layer holds ``heads`` attention heads of three forward and five backward ops each, the ops
    around them, and the variables with their updates.
    """
    graph = _Graph(seed)
    tokens = graph.op("tokens", "IteratorGetNext", "", time_us=200, kind="cpu")
    size = TOKENS * WIDTH * 4
    flow = graph.op("embedding/lookup", "GatherV2", "embedding", [(tokens, TOKENS * 4)], 80, size)
    saved: list[tuple[int, list[tuple[int, int, int]], list[int]]] = []
    for layer in range(layers):
        flow, inside, weights = _forward(graph, f"encoder/layer_{layer}", flow, heads, size)
        saved.append((flow, inside, weights))
    loss = graph.op("loss/xent", "SoftmaxCrossEntropy", "loss", [(flow, size)], 300, 4)
    gradient = graph.op("gradients/loss/xent_grad", "Mul", "gradients/loss", [(loss, 4)], 300, size)
    for layer in reversed(range(layers)):
        _, inside, weights = saved[layer]
        gradient = _backward(graph, f"encoder/layer_{layer}", gradient, inside, weights, size)
    return graph.profile(f"transformer-{layers}x{heads}")


def _forward(
    graph: _Graph, scope: str, flow: int, heads: int, size: int
) -> tuple[int, list[tuple[int, int, int]], list[int]]:
    weights = [
        graph.op(f"{scope}/{part}/kernel", "VariableV2", f"{scope}/{part}", persistent=weight)
        for part, weight in (("attention", 4 * WIDTH * WIDTH * 4), ("ffn", 8 * WIDTH * WIDTH * 4))
    ]
    attention = f"{scope}/attention"
    source = [(flow, size), (weights[0], 4 * WIDTH * WIDTH * 4)]
    projected = graph.op(f"{attention}/qkv", "MatMul", attention, source, 120, 3 * size)
    part = size // heads
    inside = []
    for head in range(heads):
        name = f"{attention}/head_{head}"
        score = graph.op(f"{name}/score", "BatchMatMul", name, [(projected, 3 * size)], 6, part)
        soft = graph.op(f"{name}/softmax", "Softmax", name, [(score, part)], 4, part)
        mixed = graph.op(
            f"{name}/mix", "BatchMatMul", name, [(soft, part), (projected, 3 * size)], 6, part
        )
        inside.append((score, soft, mixed))
    joined = graph.op(
        f"{attention}/concat", "ConcatV2", attention, [(op[2], part) for op in inside], 15, size
    )
    normed = graph.op(f"{scope}/ln", "LayerNorm", scope, [(joined, size), (flow, size)], 12, size)
    wide = [(normed, size), (weights[1], 8 * WIDTH * WIDTH * 4)]
    hidden = graph.op(f"{scope}/ffn/wide", "MatMul", f"{scope}/ffn", wide, 160, 4 * size)
    out = graph.op(f"{scope}/ffn/narrow", "MatMul", f"{scope}/ffn", [(hidden, 4 * size)], 160, size)
    return out, inside, weights


def _backward(
    graph: _Graph,
    scope: str,
    gradient: int,
    inside: list[tuple[int, int, int]],
    weights: list[int],
    size: int,
) -> int:
    back, part = f"gradients/{scope}", size // len(inside)
    ffn = graph.op(f"{back}/ffn/dx", "MatMul", f"{back}/ffn", [(gradient, size)], 320, size)
    summed = [(ffn, size)]
    for head, (score, soft, mixed) in enumerate(inside):
        name = f"{back}/attention/head_{head}"
        flow = graph.op(f"{name}/slice", "Slice", name, [(ffn, size)], 3, part)
        for step, (kind, forward) in enumerate(
            (("BatchMatMul", mixed), ("SoftmaxGrad", soft), ("BatchMatMul", score), ("Mul", soft))
        ):
            inputs = [(flow, part)] + ([(forward, part)] if step < 3 else [])
            flow = graph.op(f"{name}/d{step}", kind, name, inputs, 6, part)
        summed.append((flow, part))
    attention = f"{back}/attention"
    joined = graph.op(f"{attention}/concat", "AddN", attention, summed, 30, size)
    for part_name, weight in zip(("attention", "ffn"), weights, strict=True):
        update = f"update/{scope}/{part_name}"
        slope = graph.op(
            f"{attention}/dw_{part_name}", "MatMul", attention, [(joined, size)], 150, 4096
        )
        graph.tie(weight, graph.op(f"{update}/apply", "ApplyAdam", update, [(slope, 4096)], 20, 0))
    return joined


def chain(n_ops: int) -> Profile:
    """Make ops of which each needs the one before."""
    return _plain("chain", n_ops, np.arange(n_ops - 1), np.arange(1, n_ops))


def antichain(n_ops: int) -> Profile:
    """Make ops that need nothing."""
    nothing = np.zeros(0, dtype=np.int64)
    return _plain("antichain", n_ops, nothing, nothing)


def random_graph(n_ops: int) -> Profile:
    """Make ops that each need up to three earlier ones, drawn from all of them."""
    draw = np.random.default_rng(0)
    n_inputs = np.minimum(draw.integers(0, 4, n_ops), np.arange(n_ops))
    target = np.repeat(np.arange(n_ops), n_inputs)
    source = (draw.random(len(target)) * target).astype(np.int64)
    edge = np.unique(source * n_ops + target)
    return _plain("random", n_ops, edge // n_ops, edge % n_ops)


def _plain(name: str, n_ops: int, source: IntArray, target: IntArray) -> Profile:
    draw = np.random.default_rng(1)
    sizes = draw.integers(1, 20_000, n_ops)
    return make_profile(
        name,
        op_names=[f"layer_{i % 50}/op_{i}" for i in range(n_ops)],
        op_types=["MatMul"] * n_ops,
        scopes=[f"layer_{i % 50}" for i in range(n_ops)],
        time_us=np.column_stack([draw.uniform(1, 19, n_ops), np.full(n_ops, np.nan)]),
        edge_source=source,
        edge_output=np.zeros(len(source), dtype=np.int64),
        edge_op=target,
        edge_bytes=sizes[source],
    )


class _Graph:
    """A graph under construction."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.ops: list[tuple[str, str, str, float, float, int]] = []
        self.groups: dict[int, str] = {}
        self.edges: list[tuple[int, int, int, int]] = []

    def op(
        self,
        name: str,
        kind_of_op: str,
        scope: str,
        inputs: list[tuple[int, int]] | None = None,
        time_us: float = 0.0,
        size: int = 0,
        persistent: int = 0,
        kind: str = "gpu",
    ) -> int:
        """Add an op; ``inputs`` are (producer, bytes), where 0 bytes make a control edge."""
        time_us = round(time_us * float(self.random.uniform(0.8, 1.25)), 3)
        times = (time_us, np.nan) if kind == "gpu" else (np.nan, time_us)
        self.ops.append((name, kind_of_op, scope, *times, persistent))
        number = len(self.ops) - 1
        for source, moved in inputs or []:
            self.edges.append((source, 0 if moved else CONTROL, number, moved))
        return number

    def tie(self, variable: int, op: int) -> None:
        """Colocate an op with the variable that it reads or writes by reference."""
        self.groups[variable] = self.groups[op] = self.ops[variable][0]

    def profile(self, name: str) -> Profile:
        """Make the profile."""
        names, types, scopes, gpu, cpu, persistent = zip(*self.ops, strict=True)
        source, output, target, size = np.array(self.edges, dtype=np.int64).T
        return make_profile(
            name,
            op_names=names,
            op_types=types,
            scopes=scopes,
            time_us=np.array([gpu, cpu]).T,
            persistent_bytes=persistent,
            colocation=[self.groups.get(op, "") for op in range(len(names))],
            edge_source=source,
            edge_output=output,
            edge_op=target,
            edge_bytes=size,
        )
