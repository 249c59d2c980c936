"""Choose, edit and show clusters."""
