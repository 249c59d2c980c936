"""Files: read and written as a whole, within limits, and JSON in them."""
