"""Structure of a model according to its op names: scopes, passes, layers, groups."""
