"""Ops that never copy their first input."""

from enplace.readers.views import find_views
from enplace.values.op_kinds import is_view_type


def test_a_view_lies_in_its_first_input_unless_that_is_kept_elsewhere():
    """A reshape of the same bytes is one; of a shape on the host, or without readers, it is not."""
    types = ["Relu", "Const", "Reshape", "MatMul", "Shape", "Reshape", "Identity"]
    edges = [(0, 1, 2, 64), (1, 0, 2, 8), (2, 0, 3, 64), (4, 0, 5, 0), (5, 0, 3, 8), (2, 0, 6, 64)]
    assert find_views([*map(is_view_type, types)], edges) == [(2, 0, 0, 1)]
