"""Convolutions in two branches with kernels of different sizes, and their sum."""

from itertools import pairwise

import torch
from torch import nn

BATCH, SIZE, FILTERS, LAYERS, CLASSES, STEPS = 16, 24, 12, 3, 10, 60


class Model(nn.Module):
    """Two branches see the same pictures."""

    def __init__(self):
        super().__init__()
        self.fine, self.coarse = self._branch(3), self._branch(5)
        self.classes = nn.Linear(FILTERS, CLASSES)

    @staticmethod
    def _branch(kernel):
        sizes = [3, *[FILTERS] * LAYERS]
        layers = [nn.Conv2d(a, b, kernel, padding="same") for a, b in pairwise(sizes)]
        return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))

    def forward(self, pictures):
        """Return a number for each class."""
        both = self.fine(pictures) + self.coarse(pictures)
        return self.classes(both.mean((2, 3)))


torch.manual_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = Model().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for _ in range(STEPS):
    pictures = torch.randn(BATCH, 3, SIZE, SIZE, device=device)
    classes = torch.randint(CLASSES, (BATCH,), device=device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(pictures), classes)
    loss.backward()
    optimizer.step()
