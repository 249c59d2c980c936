"""Every command and every code block of the README and the manual runs as it stands."""

import importlib.util
import re
import shutil
import subprocess
import sys

import pytest

from blocks import (
    MANUAL,
    NOT_RUN,
    README,
    ROOT,
    STATUS,
    TO_FILE,
    Reader,
    blocks_of,
    commands_of,
    links_of,
    pages,
    prepare,
)

MEASURES = MANUAL / "how-to" / "measure.md"
"""The page that ``test_tensorflow`` runs, and checks more closely."""

MOST_NOT_RUN = 16
"""Besides those that need PyTorch, which is not in the environment of these tests."""

ALIKE = (
    README,
    MANUAL / "index.md",
    MANUAL / "getting-started.md",
    MANUAL / "how-to" / "too-big.md",
    MANUAL / "how-to" / "pipeline.md",
)
"""Pages that place the same sample, or measure the same model: one reader follows them all."""

OTHERS = [page for page in pages() if page not in (*ALIKE, MEASURES) and blocks_of(page)]


@pytest.fixture
def reader(tmp_path, monkeypatch, run_python):
    """A reader with a folder and settings of their own."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "checkout"
    folder.mkdir()
    prepare(folder)
    return Reader(folder, run_python)


@pytest.mark.parametrize(
    "read", [ALIKE, *((page,) for page in OTHERS)], ids=lambda read: str(read[0].relative_to(ROOT))
)
def test_pages_do_what_they_say(read, reader):
    for page in read:
        for block in blocks_of(page):
            reader.follow(block)


def test_the_readme_shows_the_way_from_a_model_to_a_plan():
    typed = [line for block in blocks_of(README) for line in commands_of(block)]
    names = [line.split()[1] for line in typed if line.startswith("enplace ")]
    assert names == ["import", "place", "compare", "export", "profile", "place", "run"]


def test_the_readme_stays_a_front_page():
    assert 60 <= len(README.read_text(encoding="utf-8").splitlines()) <= 100


def test_figures_of_the_readme_are_those_of_the_benchmarks():
    claims = re.findall(r"\[([^\]]+)\]\(docs/benchmarks.md#([\w-]+)\)", README.read_text("utf-8"))
    assert len(claims) >= 3
    for claim, anchor in claims:
        text = benchmark_section(anchor)
        assert all(number in text for number in re.findall(r"\d+(?:\.\d+)?", claim)), claim


def test_claims_are_in_the_sections_of_the_benchmarks():
    page = (MANUAL / "claims.md").read_text("utf-8")
    link = r"\[[^\]]+\]\(benchmarks.md#([\w-]+)\)"
    claims = re.findall(rf"^\|.*\| ([^|]*) \| {link} \|$", page, re.MULTILINE)
    assert len(claims) >= 14
    for claim, anchor in claims:
        found = numbers_in(benchmark_section(anchor))
        for number in numbers_in(claim):
            digits = len(number.partition(".")[2])
            assert any(f"{float(each):.{digits}f}" == number for each in found), claim


def benchmark_section(anchor):
    """Return a section of the benchmarks, with those in it."""
    page = (MANUAL / "benchmarks.md").read_text(encoding="utf-8")
    parts = re.split(r"^(##+) (.+)$", page, flags=re.MULTILINE)
    text, inside = "", ""
    for level, heading, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        is_it = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") == anchor
        inside = level if is_it else inside if len(level) > len(inside) > 0 else ""
        text += body if inside else ""
    return text


def numbers_in(text):
    return [each.replace(",", "") for each in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def test_every_block_has_a_known_kind_and_note():
    for block in (block for page in pages() for block in blocks_of(page)):
        assert block.kind in ("sh", "python", "json", "text"), block.where
        known = (NOT_RUN, TO_FILE, STATUS)
        assert not block.note or block.note.startswith(known), block.where


def test_few_blocks_are_left_out_and_each_says_why():
    blocks = (block for page in pages() for block in blocks_of(page) if block.kind != "text")
    left_out = [block for block in blocks if block.note.startswith(NOT_RUN)]
    assert all(len(block.why_not_run) > 8 for block in left_out)
    others = [block.where for block in left_out if block.why_not_run != "needs PyTorch"]
    assert len(others) <= MOST_NOT_RUN, others


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    made = re.compile(r"reference/(methods/|command-line|python|clusters|keys)")
    for link in links_of(page):
        path = page.parent / link.partition("#")[0]
        if link.startswith("#") or made.search(str(path)):
            continue
        assert path.exists(), f"{page.relative_to(ROOT)}: {link}"


def make_reference(source):
    """Copy the manual to a folder, with the pages that come from the program."""
    shutil.copytree(MANUAL, source)
    call_python("scripts/make_reference.py", source, "0.2")


def call_python(*words):
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_reference_pages_are_made(tmp_path):
    make_reference(tmp_path / "source")
    methods = tmp_path / "source" / "reference" / "methods"
    assert (methods / "enplace.md").exists()
    # "In a single step" does not mean the method of that name.
    assert "(single.md)" not in (methods / "metis.md").read_text(encoding="utf-8")


@pytest.mark.long  # `make docs` builds it too, and CI does that at every change
@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="needs the extra docs")
def test_the_manual_builds_without_a_warning(tmp_path):
    source = tmp_path / "source"
    make_reference(source)
    sphinx = ["-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    call_python(*sphinx, source, tmp_path / "html")
    assert (tmp_path / "html" / "reference" / "methods" / "enplace.html").exists()
    python = (tmp_path / "html" / "reference" / "python.html").read_text(encoding="utf-8")
    assert " – The plan" in python
    assert " -- " not in python
