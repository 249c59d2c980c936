"""Open scripts and exported programs, and follow them to the step that counts."""
