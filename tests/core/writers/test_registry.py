"""Titles and suffixes of exporters."""

from enplace.frameworks.registry import exporters


def test_every_exporter_has_a_title_and_a_unique_suffix() -> None:
    found = exporters().values()
    assert len({exporter.suffix for exporter in found}) == len(found)
    assert all(exporter.title for exporter in found)
