"""Which layers of a decoder go on which card: asked, shown, and taken along."""
