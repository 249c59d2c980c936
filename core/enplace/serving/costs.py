"""What layers cost on a card: memory, and the time of a token and of a prompt.

A token reads all weights of a layer, and the cache of its request: so its time is that of memory
traffic, unless many requests share one reading of the weights and arithmetic takes longer; see
:mod:`enplace.frameworks.roofline`. ``docs/explanation/serving.md`` has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from enplace.frameworks.roofline import CORE_FLOPS_PER_US, Gpu, Work, gpu_us
from enplace.serving.decoder import Decoder, Layer
from enplace.serving.machine import Machine
from enplace.values.arrays import FloatArray
from enplace.values.cluster import Device

PROMPT = 2048
"""Tokens of a prompt that go through the cards at once, as vLLM's batch has by default."""

STATE_BYTES, LOGIT_BYTES = 2, 4
KERNELS, END_KERNELS = 10, 3
"""Kernels of a layer, and of the embedding or the head: norms, products, rotation, attention."""

HOST_BYTES_PER_US, DISK_BYTES_PER_US = 50e3, 3e3
"""Two channels of DDR4-3200 carry 51 GB/s at most; a usual NVMe disk of PCIe 3 reads 3 GB/s."""


@dataclass(frozen=True)
class Wanted:
    """What is to be served: so many requests at once, each with so many tokens in its cache."""

    context: int
    requests: int


@dataclass(frozen=True)
class StageBytes:
    """What a stage holds."""

    weights: int
    cache: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.activations


class Costs:
    """The costs of a model's layers on the cards of a machine, for what is wanted."""

    def __init__(self, decoder: Decoder, machine: Machine, wanted: Wanted) -> None:
        self.decoder, self.machine, self.wanted = decoder, machine, wanted
        self.prompt = min(PROMPT, wanted.context)
        self._weights = sums(decoder.layer_bytes)
        self._cache = sums(wanted.requests * decoder.cache_bytes(wanted.context))
        states = 2 * (decoder.hidden + decoder.widest) * STATE_BYTES
        self._scratch = self.prompt * states
        self._logits = wanted.requests * decoder.vocabulary * LOGIT_BYTES

    def state_bytes(self, tokens: int) -> int:
        """Return the bytes that some tokens send from one device to the next."""
        return tokens * self.decoder.hidden * STATE_BYTES

    def bytes_of(self, begin: int, end: int, *, first: bool, last: bool) -> StageBytes:
        """Return what a stage with layers ``begin`` to ``end`` holds, with the ends that it has."""
        decoder = self.decoder
        head = decoder.head_bytes + decoder.last_bytes if last else 0
        if first and last and decoder.is_tied:
            head = decoder.last_bytes
        return StageBytes(
            int(self._weights[end] - self._weights[begin])
            + (decoder.first_bytes if first else 0)
            + head,
            int(self._cache[end] - self._cache[begin]),
            self._scratch + (self._logits if last else 0),
        )

    def token_us(self, gpu: Gpu | None, group: int) -> tuple[FloatArray, float, float]:
        """Return the times of one token of each of a group's requests.

        Parameters
        ----------
        gpu : Gpu or None
            None for the host.

        Returns
        -------
        layers : array of shape (n_layers,)
        first, last : float
            The ends of the model.
        """
        works = {
            each: _token_work(self.decoder, each, group, self.wanted.context)
            for each in {*self.decoder.layers}
        }
        return self._times_us(gpu, works), *self._ends_us(gpu, group, group)

    def prompt_us(self, gpu: Gpu | None) -> tuple[FloatArray, float, float]:
        """Return the times of a prompt of :attr:`prompt` tokens; see :meth:`token_us`."""
        works = {
            each: _prompt_work(self.decoder, each, self.prompt) for each in {*self.decoder.layers}
        }
        return self._times_us(gpu, works), *self._ends_us(gpu, self.prompt, 1)

    def disk_us(self, held: StageBytes) -> float:
        """Return the time in which the disk reads the weights that do not fit the host's memory."""
        return max(0, held.total - self._host.capacity_bytes) / DISK_BYTES_PER_US

    def all_bytes(self) -> FloatArray:
        """Return the bytes of every stage; shape (n_layers + 1, n_layers + 1), by begin and end.

        One that begins with layer 0 has the embedding, one that ends with the last the head.
        """
        decoder, last = self.decoder, self.decoder.n_layers
        held = self._weights + self._cache
        n_bytes = held[None, :] - held[:, None] + self._scratch
        n_bytes[0] += decoder.first_bytes
        n_bytes[:, last] += decoder.head_bytes + decoder.last_bytes + self._logits
        if decoder.is_tied:
            n_bytes[0, last] -= decoder.head_bytes
        return n_bytes

    def _times_us(self, gpu: Gpu | None, works: Mapping[Layer, Work]) -> FloatArray:
        times = {layer: self._time_us(gpu, work) for layer, work in works.items()}
        return np.array([times[layer] for layer in self.decoder.layers])

    def _ends_us(self, gpu: Gpu | None, tokens: int, words: int) -> tuple[float, float]:
        """Return the times to look up the embedding of tokens, and to make some words."""
        decoder = self.decoder
        looked_up = Work(n_bytes=2 * tokens * decoder.hidden * STATE_BYTES, kernels=END_KERNELS)
        flops = 2.0 * words * decoder.head_params
        n_bytes = decoder.head_bytes + decoder.last_bytes + words * decoder.vocabulary * LOGIT_BYTES
        made = Work(flops, flops, n_bytes, END_KERNELS, decoder.precision)
        return self._time_us(gpu, looked_up), self._time_us(gpu, made)

    def _time_us(self, gpu: Gpu | None, work: Work) -> float:
        if gpu is not None:
            return gpu_us(work, gpu) / gpu.speed
        computing_us = work.flops / (self._host.lanes * CORE_FLOPS_PER_US)
        return max(computing_us, work.n_bytes / HOST_BYTES_PER_US)

    @property
    def _host(self) -> Device:
        assert self.machine.host is not None
        return self.machine.cluster.devices[self.machine.host]


@lru_cache(maxsize=1 << 12)
def _expert_share(experts: int, used: int, tokens: int) -> float:
    """Return which share of the experts some tokens use, each some at random."""
    return 1 - (1 - used / experts) ** tokens if experts else 0.0


def _token_work(decoder: Decoder, layer: Layer, group: int, context: int) -> Work:
    """Return the work of a layer for one token of each request in a group."""
    kept = min(context, layer.window or context)
    share = _expert_share(decoder.experts, decoder.experts_used, group)
    used = decoder.experts_used / decoder.experts if decoder.experts else 0
    flops = group * (2 * (layer.params + used * layer.expert_params) + 4 * decoder.attention * kept)
    n_bytes = layer.n_bytes + share * layer.expert_bytes + group * kept * layer.token_bytes
    return Work(flops, flops, n_bytes, KERNELS, decoder.precision)


def _prompt_work(decoder: Decoder, layer: Layer, tokens: int) -> Work:
    """Return the work of a layer for a prompt: each token sees those before it."""
    seen = min(tokens, layer.window or tokens)
    used = decoder.experts_used / decoder.experts if decoder.experts else 0
    share = _expert_share(decoder.experts, decoder.experts_used, tokens)
    flops = tokens * (
        2 * (layer.params + used * layer.expert_params) + 2 * decoder.attention * seen
    )
    n_bytes = layer.n_bytes + share * layer.expert_bytes
    n_bytes += tokens * (layer.token_bytes + 4 * decoder.hidden * STATE_BYTES)
    return Work(flops, flops, n_bytes, KERNELS, decoder.precision)


def sums(values: FloatArray | Sequence[float]) -> FloatArray:
    """Return the sum of the first n values for each n; shape (n + 1,)."""
    return np.concatenate([[0.0], np.cumsum(values)])
