"""What op names tell about a model: scopes, passes, layers, groups."""
