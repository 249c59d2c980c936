"""The values that flow through Enplace: frozen, and checked when they are made."""
