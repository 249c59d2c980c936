"""What the library says with flags, in the words of the window."""

import pytest

from enplace_studio.model.window_words import in_window_words


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "a plan with --objective throughput --pipeline 1f1b --grain block, without pins",
            "a plan with “Find: Highest pipeline throughput”, “Pipeline: 1f1b”, "
            "“Keep whole: blocks” in Choose method, without pins",
        ),
        (
            " (--recompute trades time for memory)",
            " (“Recompute” in Choose method trades time for memory)",
        ),
        (
            r"make a plan with --whole 'layers/\d+'",
            r"make a plan with “Keep layers whole: layers/\d+” in the Edit menu",
        ),
        (
            "a reserve, such as --reserve 5%, keeps",
            "a reserve, such as “Reserve: 5%” in the cluster’s editor, keeps",
        ),
        ("ask for --objective latency.", "ask for “Find: Shortest query” in Choose method."),
        (
            "even a list schedule was shorter: try enplace-split.",
            "even a list schedule was shorter: try “Enplace with split ops”.",
        ),
        ("its script takes --batch 32 and --pipeline-parallel-size 4",) * 2,
    ],
)
def test_flags_become_fields(said, shown):
    assert in_window_words(said) == shown
