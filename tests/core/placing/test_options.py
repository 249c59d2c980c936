"""Options of placers and their flags."""

import click
import pytest

from enplace.cli.options import flag_of
from enplace.cli.solving import compare, place, simulate
from enplace.errors import EnplaceError
from enplace.option import FILE, NUMBER, SWITCH, WHOLE, Option
from enplace.placers import all_options
from enplace.placing.options import PlaceOptions, load_values
from enplace.placing.registry import EVERY, RESERVED
from enplace.values.load_rule import LoadRule
from enplace.values.plan import LINK_POLICIES, POLICIES


@pytest.mark.parametrize(
    ("values", "text", "value"),
    [
        (("sum", "overlap"), "Overlap", "overlap"),
        (SWITCH, "yes", True),
        (SWITCH, "off", False),
        (WHOLE, "12", 12),
        (NUMBER, "0.5", 0.5),
        (FILE, "rules.txt", "rules.txt"),
    ],
)
def test_values_are_read_from_text(values, text, value):
    assert Option("it", values, "", "What it is.").parse(text) == value


@pytest.mark.parametrize(
    ("values", "text", "wanted"),
    [
        (("sum", "overlap"), "all", "sum, overlap"),
        (SWITCH, "perhaps", "no, yes"),
        (WHOLE, "1.5", "a whole number, 0 or more"),
        (NUMBER, "nan", "a number, 0 or more"),
        (NUMBER, "-1", "a number, 0 or more"),
    ],
)
def test_a_wrong_value_is_refused_and_the_allowed_ones_listed(values, text, wanted):
    with pytest.raises(EnplaceError, match=f"option 'it' cannot be '{text}'; use {wanted}"):
        Option("it", values, "", "What it is.").parse(text)


@pytest.mark.parametrize("command", [place, compare])
@pytest.mark.parametrize("option", all_options().values(), ids=lambda option: option.name)
def test_every_option_has_a_flag_with_its_values_and_help(command, option):
    flags = command.get_params(click.Context(command))
    (flag,) = [each for each in flags if f"--{option.name}" in each.opts]
    assert flag.help.startswith(option.help)
    assert flag.is_flag == (option.values == SWITCH)
    if isinstance(flag.type, click.Choice):
        assert tuple(flag.type.choices) == option.choices
        for value in option.choices:
            assert flag.type(value.upper()) == flag.type(value.lower()) == value


@pytest.mark.parametrize("usual", [True, False])
def test_a_switch_can_be_turned_off_only_if_it_is_usually_on(usual):
    made = flag_of(Option("noisy", SWITCH, usual, "Whether it makes noise."))
    assert made.opts == ["--noisy"]
    assert made.secondary_opts == (["--no-noisy"] if usual else [])


@pytest.mark.parametrize("command", [place, compare])
def test_names_of_other_flags_and_arguments_are_reserved(command):
    kinds = [each for each in command.get_params(click.Context(command)) if each.multiple]
    params = [*command.params, *kinds]
    flags = {flag.removeprefix("--") for each in params for flag in each.opts}
    names = {each.name.replace("_", "-") for each in params}
    assert "stay-close" in flags
    assert (flags | names) - {"-o"} <= RESERVED


@pytest.mark.parametrize(
    ("command", "flag", "values"),
    [
        (place, "objective", EVERY),
        (simulate, "policy", POLICIES),
        (simulate, "links", LINK_POLICIES),
    ],
)
def test_choices_that_the_command_line_repeats_are_those_of_the_library(command, flag, values):
    """The command line cannot import the library's values quickly."""
    (choice,) = (each.type.choices for each in command.params if each.name == flag)
    assert set(choice) == set(values)


def test_a_load_rule_survives_conversion_to_values():
    rule = LoadRule("duplex", "gpipe", replicate=True, two_level=True)
    assert PlaceOptions(values=load_values(rule)).load_rule == rule
    assert load_values(LoadRule()) == {}
