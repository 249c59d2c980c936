"""The facts of a plan file, also of an older one."""

from enplace.readers.plan_facts import facts_from_json


def test_details_of_older_files_have_the_names_of_today():
    facts = {"latency_us": 5.0, "pieces": 2, "seed": 3}
    assert facts_from_json(facts)["details"] == {"subgraphs": 2}
