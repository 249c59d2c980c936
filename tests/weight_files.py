"""Files of weights whose data is a hole: only their headers are real."""

import json
import struct
from pathlib import Path

from enplace.serving.gguf import TYPES
from enplace.serving.weights import DTYPE_BYTES

HIDDEN, WIDE, VOCABULARY, LAYERS = 64, 256, 1000, 4
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
STRING, ARRAY, U32 = 8, 9, 4


def llama_shapes(layers=LAYERS, head=True):
    """Shapes by name of a small Llama."""
    shapes = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN]}
    for at in range(layers):
        shapes[f"model.layers.{at}.self_attn.q_proj.weight"] = [HIDDEN, HIDDEN]
        shapes[f"model.layers.{at}.self_attn.k_proj.weight"] = [16, HIDDEN]
        shapes[f"model.layers.{at}.mlp.up_proj.weight"] = [WIDE, HIDDEN]
    if head:
        shapes["lm_head.weight"] = [VOCABULARY, HIDDEN]
    return shapes


def write_safetensors(path, shapes, dtype="BF16", missing_bytes=0):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        n_bytes = int(DTYPE_BYTES[dtype] * _product(shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    write_header(path, json.dumps(header).encode(), at - missing_bytes)


def write_header(path, header, n_data_bytes=0):
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + n_data_bytes)


def write_folder(folder, config=CONFIG, shapes=None, dtype="BF16"):
    """Write a folder of two shards with their index."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    shapes = llama_shapes() if shapes is None else shapes
    names, half = list(shapes), len(shapes) // 2
    shards = {"a.safetensors": names[:half], "b.safetensors": names[half:]}
    for shard, inside in shards.items():
        write_safetensors(folder / shard, {name: shapes[name] for name in inside}, dtype)
    weight_map = {name: shard for shard, inside in shards.items() for name in inside}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def gguf_metadata():
    return {
        "general.architecture": "llama",
        "general.name": "Small",
        "llama.block_count": LAYERS,
        "llama.embedding_length": HIDDEN * 4,
        "llama.feed_forward_length": WIDE * 4,
        "llama.attention.head_count": 8,
        "llama.attention.head_count_kv": 2,
        "llama.context_length": 4096,
        "tokenizer.ggml.tokens": ["word"] * VOCABULARY,
    }


def gguf_tensors(layers=LAYERS):
    """Name, dimensions in the file's order, and number of the type."""
    found = [("token_embd.weight", [256, VOCABULARY], 12), ("output_norm.weight", [256], 0)]
    for at in range(layers):
        found.append((f"blk.{at}.attn_q.weight", [256, 256], 12))
        found.append((f"blk.{at}.ffn_down.weight", [1024, 256], 14))
    return [*found, ("output.weight", [256, VOCABULARY], 14)]


def gguf_bytes(metadata=None, tensors=None, version=3, n_tensors=None):
    metadata = gguf_metadata() if metadata is None else metadata
    tensors = gguf_tensors() if tensors is None else tensors
    parts = [b"GGUF", struct.pack("<I", version)]
    parts.append(
        struct.pack("<QQ", len(tensors) if n_tensors is None else n_tensors, len(metadata))
    )
    for key, value in metadata.items():
        parts += [_text(key), _value(value)]
    at = 0
    for name, dimensions, kind in tensors:
        parts += [_text(name), struct.pack("<I", len(dimensions))]
        parts += [struct.pack("<Q", each) for each in dimensions]
        parts.append(struct.pack("<IQ", kind, at))
        if kind in TYPES:
            _, block, block_bytes = TYPES[kind]
            at += _product(dimensions) // block * block_bytes
    header = b"".join(parts)
    return header, -(-len(header) // 32) * 32 + at


def write_gguf(path, missing_bytes=0, **given):
    header, n_bytes = gguf_bytes(**given)
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(max(len(header), min(n_bytes, 1 << 30) - missing_bytes))
    return path


def _value(value):
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    if isinstance(value, list):
        kind = STRING if isinstance(value[0], str) else U32
        inside = [_text(v) if kind == STRING else struct.pack("<I", v) for v in value]
        return struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(inside)
    return struct.pack("<II", U32, value)


def _text(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _product(shape):
    found = 1
    for each in shape:
        found *= each
    return found
