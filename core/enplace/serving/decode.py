"""The decoding of one token as a profile with an op for each layer, and a split as its plan.

So a split opens in the studio, and every exporter of stages writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from enplace.frameworks.roofline import Gpu
from enplace.serving.decoder import Decoder
from enplace.serving.splits import Served
from enplace.values.arrays import FloatArray
from enplace.values.cluster import Cluster
from enplace.values.measurement import Measurement
from enplace.values.op_kinds import OpPass
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import Profile, make_profile
from enplace.values.result import Result

METHOD, PARAMETERS = "plan-serving", "parameters"
FIRST, LAST = "embedding", "head"


def decode_result(served: Served) -> Result:
    """Return the plan of a split, played on the decoding of one token."""
    from enplace.machine import simulate

    reference = served.costs.machine.kinds[0].gpu
    profile = _profile(served, reference)
    cluster = _with_speeds(served, reference)
    profile = replace(profile, measured=replace(profile.measured, cluster=cluster))
    counts = [share.n_layers for share in served.split]
    devices = np.repeat([share.device for share in served.split], counts)
    ends = served.split[0].device, served.split[-1].device
    device = np.array([ends[0], *devices.tolist(), ends[1]])
    plan = Plan(device, np.arange(profile.n_ops), METHOD)
    return Result(simulate(Problem(profile, cluster), plan))


def _profile(served: Served, reference: Gpu) -> Profile:
    costs, decoder = served.costs, served.costs.decoder
    scopes = [_scope(decoder, number) for number in range(decoder.n_layers)]
    names = [FIRST, *scopes, LAST]
    times = np.full((len(names), 2), np.nan)
    times[:, 0] = _in_order(costs.token_us(reference, 1))
    if costs.machine.host is not None:
        times[:, 1] = _in_order(costs.token_us(None, 1))
        if served.split[0].device == costs.machine.host:
            disk_us = costs.disk_us(served.stage_bytes[0])
            times[1:-1, 1] += disk_us / max(1, served.split[0].n_layers)
    n_layers, wanted = decoder.n_layers, costs.wanted
    cache = wanted.requests * decoder.cache_bytes(wanted.context)
    is_whole = decoder.is_tied and len(served.split) == 1
    head = decoder.last_bytes + (0 if is_whole else decoder.head_bytes)
    scratch = costs.bytes_of(0, 0, first=False, last=False).activations
    last = costs.bytes_of(0, 0, first=False, last=True).activations
    ops = np.arange(len(names))
    return make_profile(
        f"{decoder.name}, one token",
        op_names=names,
        time_us=times,
        edge_source=ops[:-1],
        edge_output=np.zeros(n_layers + 1, dtype=np.int64),
        edge_op=ops[1:],
        edge_bytes=np.full(n_layers + 1, costs.state_bytes(1)),
        op_types=["Embedding", *["DecoderLayer"] * n_layers, "Head"],
        scopes=names,
        op_passes=[f"{OpPass.FORWARD}"] * len(names),
        persistent_bytes=[
            decoder.first_bytes,
            *(decoder.layer_bytes + cache).astype(np.int64).tolist(),
            head,
        ],
        temporary_bytes=[scratch] * (n_layers + 1) + [last],
        measured=Measurement(
            estimated=reference.title,
            estimated_speed=1.0,
            framework="" if decoder.weights.is_gguf else "torch",
            config={} if decoder.weights.is_gguf else {PARAMETERS: _parameters(decoder)},
            notes=(
                f"Each op is a layer for one token of one request; its memory is that of "
                f"{wanted.requests:,} with {wanted.context:,} tokens each.",
            ),
        ),
    )


def _in_order(times: tuple[FloatArray, float, float]) -> list[float]:
    layers, first_us, last_us = times
    return [first_us, *layers.tolist(), last_us]


def _scope(decoder: Decoder, number: int) -> str:
    return f"{decoder.prefix.replace('.', '/')}_{number}"


def _parameters(decoder: Decoder) -> Mapping[str, str]:
    """Return the op that holds each parameter, by its path in the model."""
    found = {}
    for tensor in decoder.weights.tensors:
        number = decoder.layer_of(tensor.name)
        if number is None:
            found[tensor.name] = LAST if tensor.name in decoder.last_names else FIRST
        elif number < decoder.n_layers:
            found[tensor.name] = _scope(decoder, number)
    if decoder.is_tied:  # accelerate keeps what is tied on one card
        found["lm_head.weight"] = FIRST
    return found


def _with_speeds(served: Served, reference: Gpu) -> Cluster:
    """Return the cluster with speeds by which all layers take what they take on each card."""
    costs, cluster = served.costs, served.costs.machine.cluster
    whole_us = costs.token_us(reference, 1)[0].sum()
    speed_of = {
        device: float(whole_us / costs.token_us(kind.gpu, 1)[0].sum())
        for kind in costs.machine.kinds
        for device in kind.devices
    }
    devices = [
        replace(device, speed=speed_of.get(number, 1.0))
        for number, device in enumerate(cluster.devices)
    ]
    host = costs.machine.host
    if host is not None and served.split[0].device == host:
        held = served.stage_bytes[0].total  # some of it may be on the disk
        larger = max(held, devices[host].capacity_bytes)
        devices[host] = replace(devices[host], capacity_bytes=larger)
    return replace(cluster, devices=tuple(devices))
