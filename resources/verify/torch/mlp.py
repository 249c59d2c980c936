"""A few wide layers and a classifier, trained by momentum."""

import torch
from torch import nn

BATCH, WIDTH, LAYERS, CLASSES, STEPS = 64, 384, 4, 10, 60

torch.manual_seed(7)
parts = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
model = nn.Sequential(*parts, nn.Linear(WIDTH, CLASSES))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
device = "cuda" if torch.cuda.is_available() else "cpu"
model.to(device)

for _ in range(STEPS):
    x = torch.randn(BATCH, WIDTH, device=device)
    classes = torch.randint(CLASSES, (BATCH,), device=device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), classes)
    loss.backward()
    optimizer.step()
