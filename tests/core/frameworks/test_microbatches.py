import pytest

from enplace.errors import PipelineError
from enplace.frameworks.microbatches import Microbatches


@pytest.mark.parametrize(
    ("schedule", "number", "complaint"),
    [
        ("1f1b", 1, "at least 2"),
        ("1f1b", "8", "at least 2"),
        ("1f1b", 2.5, "at least 2"),
        (3, 8, "there is no pipeline '3'"),
    ],
)
def test_what_is_no_pipeline_is_refused(schedule, number, complaint):
    with pytest.raises(PipelineError, match=complaint):
        Microbatches(schedule, number)
