"""Broken input for every reader: seeds, mutations, and what becomes of each mutant."""
