"""``compile``."""

from enplace.placers import placers


def test_with_all_every_method_runs_for_all_its_objectives(enplace, monkeypatch):
    ran = []

    def place(problem, method, options):
        ran.append((method, options.objective))

    monkeypatch.setattr("enplace.placers.place", place)
    monkeypatch.setattr("enplace.placers.enplace.kernels.load_all_kernels", lambda report: None)
    done = enplace("compile", "--all", "--json")
    installed = [placer for placer in placers().values() if placer.installed]
    assert set(ran) == {(placer.name, each) for placer in installed for each in placer.objectives}
    assert done.document["steps"] > len(ran)
