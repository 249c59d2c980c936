"""A small language model: an embedding, blocks of attention, and a head larger than a block."""

import torch
from torch import nn

BATCH, LENGTH, WIDTH, HEADS, LAYERS, WORDS, STEPS = 8, 48, 96, 4, 4, 2000, 60


class Block(nn.Module):
    """Attention to earlier words, then two layers, each with a way around it."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.parts, self.merge = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        """Return what the block makes of a batch of texts."""
        split = self.parts(self.before(x)).chunk(3, dim=-1)
        query, key, value = (
            part.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2) for part in split
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.merge(seen.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Model(nn.Module):
    """Tells the next word."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        """Return a number for each word that may follow."""
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


torch.manual_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for _ in range(STEPS):
    words = torch.randint(WORDS, (BATCH, LENGTH + 1), device=device)
    optimizer.zero_grad()
    told = model(words[:, :-1])
    loss = nn.functional.cross_entropy(told.flatten(0, 1), words[:, 1:].flatten())
    loss.backward()
    optimizer.step()
