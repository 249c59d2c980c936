"""Whether a model can run, and why not."""

from dataclasses import replace

from documents import document_of
from enplace.values.measurement import Measurement
from enplace_studio.model.can_run import why_no_run
from problems import cluster_of, profile_of


def test_a_model_of_an_unknown_framework_cannot_run():
    source = {"path": "/train.py", "kind": "script", "framework_name": "pytorch"}
    profile = replace(profile_of({"a": 10}, []), measured=Measurement(source=source))
    why = why_no_run(document_of(profile, cluster_of(1), {"a": 0}))
    assert why.startswith("Enplace does not know the framework pytorch; update Enplace.")
