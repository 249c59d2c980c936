"""JSON is parsed within limits, and written in pieces."""

import json

import numpy as np
import pytest

from enplace.errors import FileError
from enplace.files.json_text import ITEMS_AT_ONCE, dump_json, parse_json


def test_a_number_of_millions_of_digits_is_refused():
    with pytest.raises(FileError, match="number is too long"):
        parse_json(b'{"ops": -' + b"9" * (8 << 20) + b"}")


def test_json_in_pieces_is_that_of_the_whole():
    many = [*range(2 * ITEMS_AT_ONCE + 1)]
    nested = {"a": many, 'quo"te': {"b": tuple(many), "ä": [], "c": {}}, "d": [many, {"e": many}]}
    plain = json.dumps(nested, separators=(",", ":"), ensure_ascii=False)
    assert dump_json(nested) == plain
    assert dump_json(many) == json.dumps(many, separators=(",", ":"))
    assert dump_json({"a": np.arange(3), 2: np.float64(0.5)}) == '{"a":[0,1,2],"2":0.5}'
