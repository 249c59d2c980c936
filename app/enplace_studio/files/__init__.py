"""Projects, plans and constraints on disk: open, save, recover."""
