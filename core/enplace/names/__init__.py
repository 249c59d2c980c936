"""What the names of ops say: scopes, layers, groups."""
