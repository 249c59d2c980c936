"""Facts and reasons in words, for every view. No Qt."""
