"""What op names say about a model: scopes, passes, layers, groups."""
