"""What a decoder is made of: the weights of each layer, of what is around them, and its cache.

The cache holds a key and a value for each token: 2 × key-value heads × head size × 2 bytes per
layer, also with grouped heads. Multi-head latent attention keeps one vector instead, of its rank
and the rotated part. A layer with a sliding window keeps no more tokens than the window has.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from enplace.errors import FileError
from enplace.files.fields import shown
from enplace.frameworks.roofline import F8, F16, F32
from enplace.serving.tensor import Tensor, Weights
from enplace.serving.weights import MOST_LAYERS
from enplace.text import listed
from enplace.values.arrays import FloatArray
from enplace.values.limits import MAX_BYTES

CACHE_BYTES = 2
"""Of each number in the cache: float16 or bfloat16, the default of vLLM and llama.cpp."""

CACHES = {"16-bit": Fraction(1), "8-bit": Fraction(17, 32)}
"""What the cache takes by its precision, as a share of that default. 8 bits count with a scale for
32 numbers, as in llama.cpp; vLLM has none."""

MOST = 1 << 31
"""Largest number of heads, tokens and the like."""

_LAYER = re.compile(r"(?P<prefix>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.(?P<number>\d{1,6})\.")
_EXPERT = re.compile(r"\bexperts\.|_exps\.")
_HEAD = re.compile(r"lm_head|embed_out|^output\.")
_LAST = re.compile(r"norm|ln_f|^ln_|final")
_EMBEDDING = re.compile("emb|wte")
_PACKED = re.compile(r"weight(_packed)?$|_blocks$")
_ATTENTION = re.compile("att|qkv|query")

_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "gpt-oss": 2, "cohere2": 4}
"""Of models whose older files do not say it: one layer in so many sees the whole context."""

_WINDOWED = ("mistral", "mixtral", "phi3", "starcoder2")
"""Models in which every layer has the window that the file names."""

_STATES = ("ssm.state_size", "wkv.head_size", "shortconv.l_cache", "kda.head_dim")
_TEXT_MODELS = ("CausalLM", "LMHeadModel", "ConditionalGeneration", "LMHead", "LanguageModel")


@dataclass(frozen=True)
class Layer:
    """A layer.

    Attributes
    ----------
    n_bytes, params : int
        Weights outside of experts.
    expert_bytes, expert_params : int
        Of all its experts.
    token_bytes : int
        Cache of one token.
    window : int
        Tokens that the cache keeps at most; 0 if it keeps all.
    """

    n_bytes: int
    params: int
    expert_bytes: int
    expert_params: int
    token_bytes: int
    window: int


@dataclass(frozen=True)
class Decoder:
    """A decoder model, to be served.

    Attributes
    ----------
    layers : tuple of Layer
    first_bytes : int
        What comes before the layers: the embedding, and all else that runs once.
    head_bytes, last_bytes, head_params : int
        The matrix that makes words of the last state, and the norm beside it.
    is_tied : bool
        Whether the head is the embedding; a card with both holds it once.
    experts, experts_used : int
        Of a layer; 0 without experts.
    attention : int
        Heads × head size: width of the queries.
    most_context : int
        Longest context that the model was made for; 0 if the file does not say it.
    prefix : str
        What is before the number of a layer in the names of tensors.
    last_names : frozenset of str
        Tensors that go with the head.
    notes : tuple of str
        What was left out or assumed.
    cache : str
        One of :data:`CACHES`.
    """

    weights: Weights
    layers: tuple[Layer, ...]
    first_bytes: int
    head_bytes: int
    last_bytes: int
    head_params: int
    is_tied: bool
    hidden: int
    widest: int
    vocabulary: int
    attention: int
    experts: int
    experts_used: int
    most_context: int
    precision: str
    prefix: str
    last_names: frozenset[str]
    notes: tuple[str, ...] = ()
    cache: str = "16-bit"

    @property
    def name(self) -> str:
        return self.weights.name

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    def with_cache(self, precision: str) -> Decoder:
        """Return the model with a cache of one of :data:`CACHES`."""
        layers = tuple(
            replace(each, token_bytes=math.ceil(each.token_bytes * CACHES[precision]))
            for each in self.layers
        )
        return replace(self, layers=layers, cache=precision)

    def layer_of(self, name: str) -> int | None:
        """Return the number of the layer that a tensor is of; None if it is of none."""
        match = _LAYER.match(name)
        return int(match["number"]) if match and match["prefix"] == self.prefix else None

    @cached_property
    def layer_bytes(self) -> FloatArray:
        """Weights of each layer with its experts; shape (n_layers,)."""
        return np.array([float(each.n_bytes + each.expert_bytes) for each in self.layers])

    @property
    def n_bytes(self) -> int:
        """All weights; a tied head once."""
        head = 0 if self.is_tied else self.head_bytes
        return int(self.layer_bytes.sum()) + self.first_bytes + head + self.last_bytes

    def cache_bytes(self, context: int) -> FloatArray:
        """Return the cache of one request in each layer; shape (n_layers,)."""
        kept = [min(context, each.window or context) for each in self.layers]
        each_token = [float(layer.token_bytes) for layer in self.layers]
        return np.asarray(np.array(kept, dtype=float) * np.array(each_token))


def make_decoder(weights: Weights) -> Decoder:
    """Find the layers of a model, and what they cost.

    Raises
    ------
    FileError
        If it is no decoder, or has a kind of layer whose memory is not known here.
    """
    found = _Facts(weights)
    prefix, by_layer, outside = _divided(weights, found.n_layers)
    of_layers = [_weights_of(each) for each in by_layer]
    tokens, windows = found.token_bytes(), found.windows()
    layers = tuple(
        Layer(*each, token, window)
        for each, token, window in zip(of_layers, tokens, windows, strict=True)
    )
    heads = [each for each in outside if _HEAD.search(each.name)]
    others = [each for each in outside if not _HEAD.search(each.name)]
    last = [each for each in others if _LAST.search(each.name)]
    tables = [each for each in others if _EMBEDDING.search(each.name)]
    embedding = max(tables, key=lambda each: each.n_bytes, default=None)
    first_bytes = sum(each.n_bytes for each in others if not _LAST.search(each.name))
    if not heads and embedding is None:
        found.refuse("has neither an embedding nor a head; name a decoder's weights")
    is_tied = not heads or found.is_tied
    head = [embedding] if is_tied and embedding is not None else heads
    n_bytes = (
        first_bytes + sum(t.n_bytes for t in heads + last) + sum(sum(e[::2]) for e in of_layers)
    )
    if n_bytes > MAX_BYTES:
        found.refuse("has weights of over 2^62 bytes in all; download it again")
    return Decoder(
        weights,
        layers,
        first_bytes,
        sum(tensor.n_bytes for tensor in head),
        sum(tensor.n_bytes for tensor in last),
        sum(map(_params, head)),
        is_tied,
        found.hidden,
        found.widest,
        found.vocabulary or (head[0].shape[0] if head[0].shape else 1),
        found.attention,
        found.experts,
        found.experts_used,
        found.most_context,
        _precision(weights.tensors),
        prefix,
        frozenset(tensor.name for tensor in heads + last),
        tuple(found.notes),
    )


class _Facts:
    """What the configuration of a model says, by the names of either format."""

    def __init__(self, weights: Weights) -> None:
        self._weights, self.notes = weights, list[str]()
        config = dict(weights.config)
        if weights.is_gguf:
            self.kind = f"{config.get('general.architecture', '')}"
            self._config = {
                key.removeprefix(f"{self.kind}."): value for key, value in config.items()
            }
        else:
            text = config.get("text_config")
            self._config = {**config, **text} if isinstance(text, dict) else config
            self.kind = f"{self._config.get('model_type', '')}"
        self._refuse_others(config)
        self.n_layers = self._number(
            "num_hidden_layers", "n_layer", "num_layers", "block_count", high=MOST_LAYERS
        )
        self.hidden = self._number("hidden_size", "n_embd", "d_model", "embedding_length")
        self._heads = self._number(
            "num_attention_heads", "n_head", "attention.head_count", default=1
        )
        self._head_size = self._number(
            "head_dim", "attention.key_length", default=max(1, self.hidden // self._heads)
        )
        self.attention = self._heads * self._head_size
        wide = self._config.get("feed_forward_length")
        if isinstance(wide, list):
            whole = [each for each in wide if type(each) is int]
            self._config["feed_forward_length"] = max(whole, default=0)
        self.widest = self._number(
            "intermediate_size", "n_inner", "ffn_dim", "feed_forward_length",
            default=4 * self.hidden,
        )  # fmt: skip
        self.vocabulary = self._number("vocab_size", "tokenizer.ggml.tokens", default=0, low=0)
        self.most_context = self._number(
            "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length",
            default=0, low=0,
        )  # fmt: skip
        self.experts = self._number(
            "num_local_experts", "num_experts", "n_routed_experts", "expert_count",
            default=0, low=0,
        )  # fmt: skip
        used = self._number(
            "num_experts_per_tok", "num_experts_per_token", "expert_used_count",
            default=self.experts, low=0,
        )  # fmt: skip
        self.experts_used = min(used, self.experts)
        self.is_tied = self._config.get("tie_word_embeddings") is True

    def refuse(self, why: str) -> NoReturn:
        raise FileError(f"{self._weights.path}: {why}")

    def token_bytes(self) -> list[int]:
        """Return the cache of one token in each layer."""
        rank = self._number("kv_lora_rank", "attention.kv_lora_rank", default=0, low=0)
        if rank:
            rotated = self._number("qk_rope_head_dim", "rope.dimension_count", default=0, low=0)
            return [CACHE_BYTES * (rank + rotated)] * self.n_layers
        value_size = self._number("v_head_dim", "attention.value_length", default=self._head_size)
        each = CACHE_BYTES * (self._head_size + value_size)
        key = "attention.head_count_kv"
        if isinstance(heads := self._config.get(key), list):
            if len(heads) < self.n_layers or not all(type(n) is int and n > 0 for n in heads):
                self.refuse(f"{key}: some layers keep no keys, and such a model cannot be planned")
            return [each * int(n) for n in heads[: self.n_layers]]
        usual = 1 if self._config.get("multi_query") is True else self._heads
        heads = self._number("num_key_value_heads", "n_head_kv", key, default=usual)
        return [each * heads] * self.n_layers

    def windows(self) -> list[int]:
        """Return how many tokens each layer's cache keeps at most; 0 for all."""
        window = self._number(
            "sliding_window", "attention.sliding_window", "attention_chunk_size", default=0, low=0
        )
        kinds = self._config.get("layer_types")
        pattern = self._config.get("sliding_window_pattern")
        pattern = pattern or self._config.get("attention.sliding_window_pattern")
        if isinstance(kinds, list) and len(kinds) == self.n_layers:
            known = ("full_attention", "sliding_attention", "chunked_attention")
            if other := next((kind for kind in kinds if kind not in known), None):
                self.refuse(
                    f"layer_types: {shown(other)} keeps no usual cache, so it cannot be planned"
                )
            return [0 if kind == known[0] else window for kind in kinds]
        if isinstance(pattern, list) and len(pattern) >= self.n_layers:
            return [window if slides else 0 for slides in pattern[: self.n_layers]]
        if not window or self._config.get("use_sliding_window") is False:
            return [0] * self.n_layers
        every = pattern if type(pattern) is int and pattern > 0 else _PATTERNS.get(self.kind, 0)
        if every:
            return [0 if (at + 1) % every == 0 else window for at in range(self.n_layers)]
        if self.kind in _WINDOWED:
            return [window] * self.n_layers
        self.notes.append(
            f"Nothing says which layers have the window of {window:,} tokens, so all layers are "
            f"planned for the whole context."
        )
        return [0] * self.n_layers

    def _refuse_others(self, config: Mapping[str, Any]) -> None:
        made_of = config.get("architectures")
        named = (
            [each for each in made_of if isinstance(each, str)] if isinstance(made_of, list) else []
        )
        is_other = bool(named) and not any(each.endswith(_TEXT_MODELS) for each in named)
        if config.get("is_encoder_decoder") or is_other or "decoder_block_count" in self._config:
            what = f"is a {listed(named) or self.kind}"
            self.refuse(f"{what}, and only decoders can be planned; name one of these")
        if self._config.get("attention.causal") is False:
            self.refuse(f"is the encoder '{self.kind}', and only decoders can be planned")
        if state := next((key for key in _STATES if key in self._config), ""):
            self.refuse(f"{state}: its layers keep a state, not a cache, so it cannot be planned")

    def _number(
        self, *keys: str, default: int | None = None, low: int = 1, high: int = MOST
    ) -> int:
        """Take a whole number that has one of several names."""
        for key in keys:
            value = self._config.get(key)
            if value is None:
                continue
            if type(value) is not int or not low <= value <= high:
                self.refuse(
                    f"{self._where}{key}: must be a whole number from {low} to {high:,}, not "
                    f"{shown(value)}; correct it"
                )
            return value
        if default is None:
            self.refuse(
                f"{self._where}'{keys[-1 if self._weights.is_gguf else 0]}' is missing; "
                f"name a decoder's weights"
            )
        return default

    @property
    def _where(self) -> str:
        return "" if self._weights.is_gguf else "its config.json: "


def _divided(weights: Weights, n_layers: int) -> tuple[str, list[list[Tensor]], list[Tensor]]:
    """Divide the tensors into those of each layer and all others."""
    numbered = [(tensor, _LAYER.match(tensor.name)) for tensor in weights.tensors]
    n_bytes: Counter[str] = Counter()
    for tensor, match in numbered:
        if match:
            n_bytes[match["prefix"]] += tensor.n_bytes
    if not n_bytes:
        raise FileError(
            f"{weights.path}: no tensor is of a numbered layer; name a decoder's weights"
        )
    prefix = n_bytes.most_common(1)[0][0]
    by_layer: list[list[Tensor]] = [[] for _ in range(n_layers)]
    outside = []
    for tensor, match in numbered:
        if match is None or match["prefix"] != prefix:
            outside.append(tensor)
        elif int(match["number"]) < n_layers:
            by_layer[int(match["number"])].append(tensor)
    if empty := next((at for at, tensors in enumerate(by_layer) if not tensors), None):
        raise FileError(
            f"{weights.path}: has no tensor of layer {empty} of {n_layers}, {prefix}.{empty}; "
            f"download it again"
        )
    for at, tensors in enumerate(by_layer):
        if not any(_ATTENTION.search(each.name) for each in tensors):
            raise FileError(
                f"{weights.path}: layer {at} has no attention, so it keeps a state instead of a "
                f"cache, and the model cannot be planned"
            )
    return prefix, by_layer, outside


def _weights_of(tensors: Sequence[Tensor]) -> tuple[int, int, int, int]:
    expert = [each for each in tensors if _EXPERT.search(each.name)]
    dense = [each for each in tensors if not _EXPERT.search(each.name)]
    n_bytes, n_expert_bytes = (sum(each.n_bytes for each in some) for some in (dense, expert))
    return n_bytes, sum(map(_params, dense)), n_expert_bytes, sum(map(_params, expert))


def _params(tensor: Tensor) -> int:
    """Count the weights of a tensor; a packed one holds eight of four bits in each int32."""
    if tensor.dtype in ("I32", "U8") and _PACKED.search(tensor.name):
        return tensor.elements * (8 if tensor.dtype == "I32" else 2)
    return tensor.elements


def _precision(tensors: Sequence[Tensor]) -> str:
    """Return the precision of arithmetic with the type that most of the weights have."""
    n_bytes: Counter[str] = Counter()
    for tensor in tensors:
        n_bytes[tensor.dtype] += tensor.n_bytes
    usual = n_bytes.most_common(1)[0][0]
    return F8 if usual.startswith("F8") else F32 if usual == "F32" else F16
