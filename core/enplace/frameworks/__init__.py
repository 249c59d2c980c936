"""Everything that depends on a framework: what all share, and a folder for each."""
