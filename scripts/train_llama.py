"""Train a Llama of 7 or 70 billion weights, for an estimate: enplace profile ... --estimate h100.

Usage: train_llama.py 7b|70b
"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
    "7b": {"num_hidden_layers": 32},
    "70b": {
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
}
BATCH, LENGTH = 1, 2048

torch.set_default_dtype(torch.bfloat16)
config = LlamaConfig(**SIZES[sys.argv[1]], use_cache=False)
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for _ in range(3):
    words = torch.randint(0, config.vocab_size, (BATCH, LENGTH))
    optimizer.zero_grad()
    model(input_ids=words, labels=words).loss.backward()
    optimizer.step()
