"""The check on a GPU: models as people train them, measured and predicted."""
