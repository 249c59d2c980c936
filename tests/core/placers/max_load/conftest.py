import pytest

from enplace.readers import read_profile
from enplace.readers.clusters import cluster_from
from enplace.readers.samples import samples
from enplace.values.problem import Problem


@pytest.fixture(scope="session")
def bert():
    """BERT-3, training, operators: Table 1 of the paper."""
    profile = read_profile(next(s.path for s in samples() if s.name == "bert-3-training"))
    return Problem(profile, cluster_from("from-file", profile))
