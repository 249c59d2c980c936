"""Declarations of placers that are refused."""

import pytest

from enplace.errors import EnplaceError
from enplace.option import SWITCH, WHOLE, Option
from enplace.placers import place, placers
from enplace.placing import registry
from enplace.placing.registry import CAPABILITIES, placer
from enplace.values.problem import THROUGHPUT, Problem
from problems import cluster_of, profile_of

SIDE = Option("test-side", ("left", "right"), "left", "Which of the GPUs takes everything.")


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))


def register(name="mine", title="Mine", **declaration):
    return placer(name, title=title, **declaration)(lambda problem, options: None)


def option(name="mine", values=("left", "right"), default="left", objective=""):
    return Option(name, values, default, "What it does.", objective)


@pytest.mark.parametrize(
    ("declaration", "fault"),
    [
        ({"name": "heft"}, "placer 'heft': another placer has this name; choose another one"),
        ({"name": "My Method"}, "placer 'My Method': use lower-case words joined by hyphens"),
        ({"title": ""}, "placer 'mine': give it a title"),
        ({"options": [1]}, "placer 'mine': its options must be a tuple"),
        ({"objectives": ()}, "placer 'mine': it has no objective; use step-time, throughput"),
        ({"objectives": ("speed",)}, "there is no objective 'speed'; use step-time, throughput"),
        ({"capabilities": ("magic",)}, "there is no capability 'magic'; use memory, "),
    ],
)
def test_a_wrong_declaration_is_refused_in_one_sentence(declaration, fault):
    with pytest.raises(ValueError, match=fault):
        register(**declaration)


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (option(default="up"), "'mine' cannot have the default 'up', which is none of its values"),
        (option(default="Left"), "cannot have the default 'Left'"),
        (option(values=SWITCH, default=1), "cannot have the default '1'"),
        (option(values=WHOLE, default=-1), "cannot have the default '-1'"),
        (option(values=()), "'mine' has no values; list them, or name one of its kinds: switch"),
        (option(values="colour"), "'mine' has no values"),
        (option(values=["left", "right"]), "'mine' must list its values in a tuple of texts"),
        (option(values=(1, 2), default=1), "'mine' must list its values in a tuple of texts"),
        (option("cluster"), "every method has a flag 'cluster'; give its option another name"),
        (option("My_side"), "'My_side' cannot name an option; use lower-case words joined by hyph"),
        (option(objective=THROUGHPUT), "'mine' is for 'throughput', which it does not serve"),
        (option("family"), "its option 'family' differs from that of expert; share it, or"),
    ],
)
def test_a_wrong_option_is_refused_in_one_sentence(wrong, fault):
    with pytest.raises(ValueError, match=f"placer 'mine': .*{fault}"):
        register(options=(wrong,))
    assert "mine" not in placers()


def test_an_own_option_called_load_is_refused_if_the_method_has_the_shared_one():
    with pytest.raises(ValueError, match="it has two options 'load', its own and one shared"):
        register(objectives=(THROUGHPUT,), options=(option("load"),))


def test_two_placers_may_share_an_option():
    register("one", options=(SIDE,))
    register("two", options=(SIDE,))
    with pytest.raises(ValueError, match="differs from that of one, two; share it"):
        register("three", options=(option("test-side"),))


def test_a_method_that_returns_no_plan_is_named():
    register()
    problem = Problem(profile_of({"a": 1}), cluster_of(1))
    with pytest.raises(EnplaceError, match="method 'mine' returned None, which is not a plan"):
        place(problem, "mine")


def test_every_capability_says_what_it_promises():
    assert all(CAPABILITIES.values())
    used = {capability for each in placers().values() for capability in each.capabilities}
    assert used == set(CAPABILITIES)
