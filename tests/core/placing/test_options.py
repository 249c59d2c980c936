"""Options of placers and their flags."""

import click
import pytest

from enplace.cli.options import SPELLINGS
from enplace.cli.solving import place
from enplace.errors import EnplaceError
from enplace.placers import placers
from enplace.placing.options import FILE, NUMBER, SWITCH, WHOLE, Option, PlaceOptions, load_values
from enplace.values.load_rule import LoadRule

DECLARED = {option.name: option for placer in placers().values() for option in placer.options}


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
        (WHOLE, "1.5", "a whole number"),
        (NUMBER, "nan", "a number"),
        (NUMBER, "-1", "a number"),
    ],
)
def test_a_wrong_value_is_refused_and_the_allowed_ones_listed(values, text, wanted):
    with pytest.raises(EnplaceError, match=f"option 'it' cannot be '{text}'; use {wanted}"):
        Option("it", values, "", "What it is.").parse(text)


def test_options_with_one_name_are_the_same_option():
    for placer in placers().values():
        assert all(DECLARED[option.name] == option for option in placer.options)


@pytest.mark.parametrize("flag", SPELLINGS)
def test_a_flag_offers_the_values_of_its_option(flag):
    option = DECLARED[SPELLINGS[flag]]
    (parameter,) = [each for each in place.params if each.name == flag]
    if isinstance(parameter.type, click.Choice):
        assert list(parameter.type.choices) == [value.lower() for value in option.choices]
    else:
        assert parameter.is_flag == (option.values == SWITCH)


def test_a_load_rule_survives_conversion_to_values():
    rule = LoadRule("duplex", "gpipe", replicate=True, two_level=True)
    assert PlaceOptions(values=load_values(rule)).load_rule == rule
    assert load_values(LoadRule()) == {}
