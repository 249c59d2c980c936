import pytest

from enplace.errors import FileError
from enplace.serving.decoder import make_decoder
from enplace.serving.weights import read_weights
from weight_files import (
    CONFIG,
    HIDDEN,
    LAYERS,
    VOCABULARY,
    gguf_metadata,
    llama_shapes,
    write_folder,
    write_gguf,
)


def _decoder(folder, shapes=None, dtype="BF16", **config):
    return make_decoder(read_weights(write_folder(folder, {**CONFIG, **config}, shapes, dtype)))


def test_layers_ends_and_cache_of_a_llama(tmp_path):
    found = _decoder(tmp_path / "m")
    layer = 2 * (HIDDEN * HIDDEN + 16 * HIDDEN + 256 * HIDDEN)
    assert [each.n_bytes for each in found.layers] == [layer] * LAYERS
    assert (found.first_bytes, found.head_bytes) == (2 * VOCABULARY * HIDDEN,) * 2
    assert found.n_bytes == LAYERS * layer + 4 * VOCABULARY * HIDDEN + 2 * HIDDEN
    # 2 x key-value heads x head size x bytes
    assert found.cache_bytes(100).tolist() == [100 * 2 * 2 * 8 * 2] * LAYERS


def test_a_tied_head_is_counted_once(tmp_path):
    found = _decoder(tmp_path / "m", llama_shapes(head=False))
    assert found.is_tied
    assert found.head_bytes == found.first_bytes == 2 * VOCABULARY * HIDDEN
    assert found.n_bytes == sum(t.n_bytes for t in found.weights.tensors)


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({"sliding_window": 10}, [100] * 4),  # of a model of which no rule is known
        ({"sliding_window": 10, "model_type": "mistral"}, [10] * 4),
        ({"sliding_window": 10, "model_type": "qwen2", "use_sliding_window": False}, [100] * 4),
        ({"sliding_window": 10, "model_type": "gemma2"}, [10, 100, 10, 100]),
        ({"sliding_window": 10, "sliding_window_pattern": 4}, [10, 10, 10, 100]),
        (
            {"sliding_window": 10, "layer_types": ["full_attention", "sliding_attention"] * 2},
            [100, 10, 100, 10],
        ),
    ],
)
def test_a_sliding_window_bounds_the_cache_of_its_layers(tmp_path, config, kept):
    found = _decoder(tmp_path / "m", **config)
    assert (found.cache_bytes(100) / (2 * 2 * 8 * 2)).tolist() == kept


def test_latent_attention_keeps_one_vector_of_each_token(tmp_path):
    found = _decoder(tmp_path / "m", kv_lora_rank=512, qk_rope_head_dim=64)
    assert found.layers[0].token_bytes == 2 * (512 + 64)


def test_experts_are_told_from_what_every_token_reads(tmp_path):
    shapes = llama_shapes()
    for at in range(LAYERS):
        shapes[f"model.layers.{at}.mlp.shared_experts.up.weight"] = [8, 8]
        for expert in range(4):
            shapes[f"model.layers.{at}.mlp.experts.{expert}.up.weight"] = [16, 16]
    found = _decoder(tmp_path / "m", shapes, num_local_experts=4, num_experts_per_tok=2)
    assert (found.experts, found.experts_used) == (4, 2)
    assert found.layers[0].expert_bytes == 4 * 2 * 16 * 16
    assert found.layers[0].n_bytes == 2 * (HIDDEN * HIDDEN + 16 * HIDDEN + 256 * HIDDEN + 64)


def test_a_gguf_file_says_the_same_in_its_metadata(tmp_path):
    found = make_decoder(read_weights(write_gguf(tmp_path / "m.gguf")))
    assert (found.n_layers, found.vocabulary, found.most_context) == (LAYERS, VOCABULARY, 4096)
    assert found.layers[0].token_bytes == 2 * 2 * 32 * 2
    assert found.head_bytes == VOCABULARY * 210


REFUSED = {
    "encoder and decoder": ({"is_encoder_decoder": True}, "only decoders can be planned"),
    "encoder": ({"architectures": ["BertForMaskedLM"]}, "is a BertForMaskedLM, and only decoders"),
    "state": ({"layer_types": ["linear_attention"] * 4}, 'layer_types: "linear_attention"'),
    "layers that are missing": ({"num_hidden_layers": 5}, "no tensor of layer 4 of 5"),
    "heads that overflow": ({"num_key_value_heads": 1 << 40}, "num_key_value_heads: must be a"),
    "no number": ({"hidden_size": "wide"}, "config.json: hidden_size: must be a whole number"),
    "nothing": ({"hidden_size": None}, "'hidden_size' is missing"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_whatever_is_no_decoder_is_refused(tmp_path, fault):
    config, line = REFUSED[fault]
    with pytest.raises(FileError, match=line):
        _decoder(tmp_path / "m", **config)


def test_layers_without_attention_are_refused(tmp_path):
    shapes = llama_shapes(layers=3) | {"model.layers.3.mixer.in_proj.weight": [64, 64]}
    with pytest.raises(FileError, match="layer 3 has no attention, so it keeps a state"):
        _decoder(tmp_path / "m", shapes)


def test_a_gguf_file_with_states_is_refused(tmp_path):
    metadata = {**gguf_metadata(), "llama.ssm.state_size": 16}
    path = write_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(FileError, match=r"ssm.state_size: its layers keep a state"):
        make_decoder(read_weights(path))
