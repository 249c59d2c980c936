import sys
from types import ModuleType

import pytest

from enplace.frameworks.torch.open.uses import CONDITION, END, SIZE, Uses, place_of

OTHER = """
def stops(value):
    return value > 3
class Meter:
    def __init__(self):
        self.total = 0
    def update(self, value, n=1):
        self.total += value * n
"""


class Tensor:
    """Notes where it is read."""

    def item(self):
        self.place = place_of(sys._getframe(1))
        return 1

    __int__ = __index__ = item

    def __bool__(self):
        self.place = place_of(sys._getframe(1))
        return True


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("print(t.item()); f'{t.item():.2f}'; '%.2f' % t.item(); log.append(t.item())", set()),
        ("total = 0\ntotal += t.item()\nprint(total / 3)", set()),
        ("total = 0\ntotal += t.item()\nif total < 1:\n    pass", {CONDITION}),
        ("if int(t) > 3: pass", {CONDITION}),
        ("import math\nx = math.exp(float(t.item()))\nwhile x < 1: pass", {CONDITION}),
        ("for _ in range(int(t)): pass", {SIZE}),
        ("x[:int(t)]", {END}),
        ("longest = min(int(t) + 1, 9)\nx[:longest]", {END}),
        ("x[:t]", {END}),
        ("x[:-int(t)]", {SIZE}),
        ("n = int(t)\nx[:n]\nlist(range(n))", {SIZE}),
        ("n = int(t)\ndef f():\n    n = 3\n    return range(n)", set()),
        ("log.append(t.item())\nif max(log) > 3: pass", {CONDITION}),
        ("def read(): return t.item()\ndef go():\n    if read(): pass\ngo()", {CONDITION}),
        ("import other\nif other.stops(t.item()): pass", {CONDITION}),
        ("m = Meter()\nm.update(t.item())\nprint(m.total)", set()),
        ("m = Meter()\nm.update(t.item())\nif m.total: pass", {CONDITION}),
        ("a, n = t.item(), 3\nrange(n)", set()),
        ("t and print(3)", {CONDITION}),
        ("(print if t.item() else repr)(3)", {CONDITION}),
        ("if not t.item(): raise ValueError", set()),
        ("if not t: raise ValueError", set()),
        ("if t or t: print(3)", {CONDITION}),
        ("try:\n    assert t.item()\nexcept AssertionError:\n    pass", {CONDITION}),
        ("d = {'loss': t.item()}\nlen(d)", set()),
    ],
)
def test_a_value_is_followed_to_what_it_decides(monkeypatch, text, uses):
    other = ModuleType("other")
    exec(OTHER, vars(other))
    monkeypatch.setitem(sys.modules, "other", other)
    t = Tensor()
    given = {"t": t, "log": [0], "x": [1, 2, 3], "Meter": other.Meter}
    exec(compile(text, "train.py", "exec"), given)
    assert Uses({"train.py": text, "other.py": OTHER}).find("train.py", t.place) == uses
