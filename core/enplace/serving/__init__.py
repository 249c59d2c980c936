"""Serve a decoder model on the cards at hand: which layers go where, and how much then fits."""
