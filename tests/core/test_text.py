import pytest

from enplace import text


@pytest.mark.parametrize(
    ("time_us", "shown"),
    [
        (148_900, "148.9 ms"),
        (0, "0 ms"),
        (12, "0.012 ms"),
        (1, "0.0010 ms"),
        (0.92, "0.92 µs"),
        (4.4e-4, "0.44 ns"),
        (450, "0.45 ms"),
        (999.9, "1.0 ms"),
        (4_400, "4.4 ms"),
        (1_234_500, "1,234.5 ms"),
    ],
)
def test_times_are_shown_in_milliseconds(time_us, shown):
    assert text.ms(time_us) == shown


@pytest.mark.parametrize(
    ("delta_us", "shown"), [(2_100, "+2.1 ms"), (-2_100, "−2.1 ms"), (0, "0 ms"), (-6e-11, "0 ms")]
)
def test_changes_carry_a_sign(delta_us, shown):
    assert text.ms(delta_us, signed=True) == shown


@pytest.mark.parametrize(
    ("n_bytes", "shown"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1 << 20, "1.0 MiB"),
        (61 << 20, "61 MiB"),
        (1023.9 * 1024, "1.0 MiB"),
        (11.9 * 2**30, "11.9 GiB"),
        (256 << 30, "256 GiB"),
        (-3 << 20, "−3.0 MiB"),
    ],
)
def test_sizes_use_binary_units(n_bytes, shown):
    assert text.size(n_bytes) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(512, "512 FLOP"), (999.9e3, "1 MFLOP"), (3.86e9, "3.86 GFLOP"), (2e20, "2e+05 PFLOP")],
)
def test_quantities_use_decimal_prefixes(value, shown):
    assert text.quantity(value, "FLOP") == shown


@pytest.mark.parametrize(
    ("fraction", "signed", "shown"),
    [(0.081, False, "8.1 %"), (-0.198, True, "−19.8 %"), (0.178, True, "+17.8 %")],
)
def test_percentages_have_one_decimal(fraction, signed, shown):
    assert text.percent(fraction, signed) == shown


def test_a_change_too_small_to_show_has_no_sign():
    assert text.percent(-0.0001, signed=True) == "0.0 %"


@pytest.mark.parametrize(
    ("change", "shown"),
    [(0.0, "as fast"), (-4.9e-4, "as fast"), (5.1e-4, "+0.1 %"), (-0.198, "−19.8 %")],
)
def test_a_change_that_shows_as_nothing_is_a_tie(change, shown):
    assert text.change_text(change) == shown


@pytest.mark.parametrize(
    ("speed", "shown"), [(25e9, "25 GB/s"), (850e6, "850 MB/s"), (12.5e9, "12.5 GB/s")]
)
def test_bandwidth_uses_decimal_units(speed, shown):
    assert text.rate(speed) == shown


def test_counts_have_a_singular_and_group_thousands():
    assert [text.count(n, "op") for n in (0, 1, 3776)] == ["0 ops", "1 op", "3,776 ops"]


def test_waiting_times_change_unit_after_a_minute():
    assert [text.seconds(s) for s in (0.42, 12.3, 200)] == ["0.4 s", "12 s", "3 min 20 s"]


@pytest.mark.parametrize("length", range(1, 15))
def test_elided_text_keeps_both_ends_and_the_length(length):
    shown = text.elide_middle("encoder/layer", length)
    assert len(shown) == min(length, 13)
    assert shown == "encoder/layer" or "…" in shown


def test_a_short_text_stays_whole():
    assert text.elide_middle("lstm", 4) == "lstm"


@pytest.mark.parametrize(
    ("value", "found"), [(2, 2.0), ("2", None), (float("inf"), None), (10**400, None)]
)
def test_a_number_from_a_file_is_finite_or_none(value, found):
    assert text.finite(value) == found


def test_a_change_to_many_times_as_long_is_shown_in_times():
    shown = [text.change_text(change) for change in (0.0, 8.5, 128.239, 12000)]
    assert shown == [text.AS_FAST, "+850.0 %", "129 times", "12,001 times"]


def test_changes_between_times_add_up_as_shown():
    levels, changes = text.ms_changes([1040.0, 2090.0, 2149.0])
    assert levels == ["1.0 ms", "2.1 ms", "2.1 ms"]
    assert changes == ["+1.1 ms", "0.0 ms"]


def test_changes_of_short_times_have_as_many_digits_as_the_longest():
    assert text.ms_changes([20.0, 41.0])[1] == ["+0.021 ms"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("=1+1", "'=1+1"),
        ("a;=1", "a;'=1"),
        ("a =1", "a '=1"),
        ("\t=1", "'\t'=1"),
        ("\rplain", "'\rplain"),
        ("+2.1 ms", "'+2.1 ms"),
        ("\u200d=1", "'\u200d=1"),
        ("\ufe0f\ufeff+1", "'\ufe0f\ufeff+1"),
        ("a-b/c=d@e:0", "a-b/c=d@e:0"),
    ],
)
def test_no_cell_of_a_spreadsheet_is_a_formula(written, shown):
    assert text.cell_text(written) == shown


@pytest.mark.parametrize("amount", ["+2.1 ms", "+1,024 MiB", "+3.0 %", "compute +2.1 ms, links"])
def test_a_change_that_we_show_may_stay_an_amount(amount):
    assert text.cell_text(amount, keep_amounts=True) == amount


@pytest.mark.parametrize("formula", ["+1+1", "+2 ms+cmd", "=2.1 ms", "+A1 ms", "+2 B;=1"])
def test_what_only_looks_like_an_amount_is_no_formula_either(formula):
    assert "'" in text.cell_text(formula, keep_amounts=True)
