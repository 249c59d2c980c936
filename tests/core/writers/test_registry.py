"""Titles and suffixes of exporters."""

import pytest

from enplace.frameworks.registry import exporters
from enplace.writers.registry import exporter


def test_every_exporter_has_a_title_and_a_unique_suffix() -> None:
    found = exporters().values()
    assert len({exporter.suffix for exporter in found}) == len(found)
    assert all(exporter.title for exporter in found)


def test_a_name_in_use_is_refused() -> None:
    assert "csv" in exporters()
    with pytest.raises(ValueError, match="exporter 'csv': another exporter has this name"):
        exporter("csv", title="Mine", suffix=".mine")
