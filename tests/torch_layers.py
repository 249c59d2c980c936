"""A training step of PyTorch with numbered layers, made by hand."""

import numpy as np

from enplace.values.measurement import Measurement
from enplace.values.profile import make_profile

KB = 1 << 10
LOOKUP_US, LAYER_US, HEAD_US, UPDATE_US = 10.0, 100.0, 50.0, 22.0


def layered(n_layers=6, weight=64 * KB, head=64 * KB, samples=8, data=4 * KB, cast=False):
    """Return a step with AdamW: each weight holds two states besides.

    Parameters
    ----------
    weight, head : int
        Bytes of the weight of a layer and of the embedding, and of the head.
    cast : bool
        Whether the head also reads the weight of the embedding, which is cast for it; this weight
        is where the embedding is.
    """
    modules = ["emb", *(f"layers_{at}" for at in range(n_layers)), "head"]
    size = dict.fromkeys(modules, weight) | {"head": head}
    time_us = dict.fromkeys(modules, LAYER_US) | {"emb": LOOKUP_US, "head": HEAD_US}
    rows, edges = [], []

    def add(name, type_, kind, pass_, scope, us=0.0, held=0):
        rows.append((name, type_, kind, pass_, scope, us, held))
        return len(rows) - 1

    held = {
        module: add(f"{module}/weight", "Parameter", "variable", "forward", module, 0.0, 3 * n)
        for module, n in size.items()
    }
    copy = add("head/_to_copy", "_to_copy", "elementwise", "forward", "head", 1.0) if cast else None
    last = add("batch", "input", "input", "forward", "input")
    done = {}
    for module in modules:
        done[module] = add(f"{module}/mm", "mm", "matmul", "forward", module, time_us[module])
        edges += [(last, done[module], data), (held[module], done[module], 0)]
        last = done[module]
    if copy is not None:
        edges += [(held["emb"], copy, 0), (copy, last, weight)]
    back = add("gradients/loss/nll", "nll", "elementwise", "backward", "gradients/loss", 1.0)
    edges.append((last, back, data))
    for module in reversed(modules):
        scope = f"gradients/{module}"
        of = add(f"{scope}/mm", "mm", "matmul", "backward", scope, time_us[module])
        sums = add(f"{scope}/mm_1", "mm", "matmul", "backward", scope, time_us[module])
        update = add(
            f"update/{module}/AdamW", "AdamW", "update", "update", f"update/{module}", UPDATE_US
        )
        edges += [(back, of, data), (held[module], of, 0), (back, sums, data)]
        edges += [(done[module], sums, data), (sums, update, size[module])]
        edges += [(held[module], update, 0)]
        back = of
    columns = list(zip(*rows, strict=True))
    paths = {f"{module.replace('s_', 's.')}.weight": f"{module}/weight" for module in modules}
    measured = Measurement(
        framework="torch", batch_shapes=((samples, 4),), config={"parameters": paths}
    )
    return make_profile(
        "layered",
        op_names=columns[0],
        op_types=columns[1],
        op_kinds=columns[2],
        op_passes=columns[3],
        scopes=columns[4],
        time_us=np.array([[us, np.nan] for us in columns[5]]),
        persistent_bytes=columns[6],
        temporary_bytes=[0] * len(rows),
        colocation=["emb" if cast and "emb/" in row[0] else "" for row in rows],
        edge_source=[a for a, _, _ in edges],
        edge_output=[0] * len(edges),
        edge_op=[b for _, b, _ in edges],
        edge_bytes=[n for _, _, n in edges],
        measured=measured,
    )
