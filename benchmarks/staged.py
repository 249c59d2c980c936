"""A decoder that trains on the CPU, one thread for each process; its sizes are arguments."""

from __future__ import annotations

import sys

import torch
from torch import nn

LAYERS, WIDTH, VOCABULARY, BATCH, LENGTH = map(int, sys.argv[1:6])
HEADS = 4


class Layer(nn.Module):
    """Attention and a feed-forward network, each beside a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add to what comes in."""
        parts = self.queries(self.first(x)).split(WIDTH, 2)
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    """An embedding, layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a number for each word that may come next."""
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        found: torch.Tensor = self.head(x)
        return found


def main() -> None:
    """Train on random words."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(60):
        x, y = torch.randint(0, VOCABULARY, (2, BATCH, LENGTH))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
