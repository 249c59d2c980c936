"""The values that flow through Enplace: frozen, and checked on creation."""
