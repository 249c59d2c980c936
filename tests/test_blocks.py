"""What runs the code blocks of the manual fails where a page is wrong."""

import pytest

import blocks
from blocks import Reader, blocks_of, quick

PAGE = """# A page

```sh
enplace clusters --json pesto > mine.json   # a comment
grep -c GPU:0 mine.json
```

```text
3
```

<!-- file: note.txt -->
```text
kept
```

<!-- not run: needs a GPU -->
```sh
exit 3
```

```python
from pathlib import Path

assert Path("note.txt").read_text() == "kept\\n"
```

<!-- exit status 1 -->
```sh
test 1 = 2
```
"""


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """Return what reads a page and does what it says, in this process."""
    monkeypatch.setattr(blocks, "ROOT", tmp_path)

    def follow(text):
        page = tmp_path / "page.md"
        page.write_text(text, encoding="utf-8")
        reader = Reader(tmp_path)
        for block in blocks_of(page):
            reader.follow(block)

    return follow


def test_a_page_that_is_right_passes(follow, tmp_path):
    follow(PAGE)
    assert (tmp_path / "note.txt").read_text() == "kept\n"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("clusters --json pesto", "clusters --json pasta", "page.md, line 3: enplace clusters"),
        ("```text\n3", "```text\nthree", "not printed: three"),
        ("test 1 = 2", "test 1 = 1", "page.md, line 28: test 1 = 1"),
        ("<!-- not run: needs a GPU -->\n", "", "exit 3"),
    ],
)
def test_a_page_that_is_wrong_fails_and_says_where(follow, old, new, fault):
    assert old in PAGE
    with pytest.raises(AssertionError, match=fault):
        follow(PAGE.replace(old, new))


@pytest.mark.parametrize(
    ("typed", "run"),
    [
        ("enplace place P --cluster C", "enplace place P --cluster C --rounds 1"),
        (
            "enplace place P --method heft --time-limit 60",
            "enplace place P --method heft --time-limit 1",
        ),
        ("ep.place(p, c, time_limit_s=10)", "ep.place(p, c, time_limit_s=1)"),
        ("enplace methods", "enplace methods"),
    ],
)
def test_searches_are_short(typed, run):
    assert quick(typed) == run
