"""Names in a list leave out what they share, never what differs."""

from enplace_studio.explain.shortened import brief, by_ends, by_words, shorten_among, wrapped

NAMES = [f"gradients of decoder / layer {n} on GPU 1" for n in range(6)]
NAMES += [f"gradients of encoder / layer {n} on GPU 0" for n in range(3)]


def short(name, width):
    return shorten_among(name, NAMES, len, width)


def test_a_name_that_fits_stays_as_it_is():
    assert short(NAMES[0], 100) == NAMES[0]


def test_usual_words_are_abbreviated_first():
    assert short(NAMES[0], 34) == "∇ decoder/layer 0 on GPU 1"


def test_what_all_names_share_goes_next_and_what_differs_stays():
    assert short(NAMES[8], 26) == "∇ encoder/layer 2 on GPU 0"
    assert short(NAMES[8], 10).startswith("∇ encoder/layer 2")


def test_no_name_becomes_another():
    for width in range(10, 40):
        assert len({short(name, width) for name in NAMES}) == len(NAMES)


def test_a_name_that_shares_nothing_is_not_shortened():
    assert shorten_among("softmax", ["softmax", *NAMES], len, 3) == "softmax"


def test_a_text_is_abbreviated_only_if_it_must_be_and_in_one_way():
    text = "gradients of decoder / layer 4 off GPU 1"
    assert brief(text, len, 40) == text
    assert brief(text, len, 39) == brief(text, len, 20) == "∇ decoder/layer 4 off GPU 1"


def test_a_text_that_is_too_wide_continues_on_the_next_line():
    text = "Keep “decoder / layer 4” off GPU 1"
    assert wrapped(text, len, 40) == [text]
    assert wrapped(text, len, 24) == ["Keep “decoder / layer 4”", "off GPU 1"]
    assert wrapped(text, len, 14) == ["Keep “decoder", "/ layer 4” off", "GPU 1"]
    assert wrapped("Pin “embedding” to GPU 1", len, 23) == ["Pin “embedding” to", "GPU 1"]
    assert wrapped("Pin unbreakable", len, 4) == ["Pin", "unbreakable"]


def test_gradients_among_other_names_are_abbreviated_before_words_are_left_out():
    some = ["gradients of decoder / layer 2", "decoder / layer 4", "decoder / layer 5"]
    assert shorten_among(some[0], some, len, 18) == "∇ decoder/layer 2"


def test_a_number_of_ops_keeps_its_sign_and_one_name_alone_shares_nothing():
    ends = ("mm of layer 1", "mm_1 of layer 1", "add of layer 1")
    some = [f"{n} × {end}" for n, end in enumerate(ends)]
    assert shorten_among(some[1], some, len, 12) == "1 × mm_1…layer 1"
    assert shorten_among(some[1], some[1:2], len, 12) == some[1]


def test_a_channel_keeps_its_arrow():
    some = ["GPU 0 → GPU 2", "GPU 2 → GPU 0", "bert / encoder / layer 0 / intermediate"]
    assert shorten_among(some[0], some, len, 14) == some[0]


def test_a_size_is_not_torn_from_its_unit():
    text = "226 ops pinned, 2 × V100 16 GB over PCIe"
    assert not [width for width in range(12, 40) if "… GB" in by_ends(text, len, width)]


PLANS = [
    "Enplace",
    "Enplace, 75 ops pinned, 10 s",
    "Enplace, 75 ops pinned, 10 s, edited",
    "Enplace, 75 ops pinned, 30 s",
    "Weights of layer 3 in the host's memory",
]


def test_a_name_that_begins_unlike_others_leaves_words_out_at_its_end():
    assert by_words(PLANS[4], PLANS, len, 39) == PLANS[4]
    assert by_words(PLANS[4], PLANS, len, 30) == "Weights of layer 3 in the …"
    assert by_words(PLANS[4], PLANS, len, 18) == "Weights of …", "no number without its word"


def test_names_that_begin_alike_leave_words_out_before_what_differs():
    assert by_words(PLANS[1], PLANS, len, 24) == "Enplace, 75 ops … 10 s"
    assert by_words(PLANS[2], PLANS, len, 30) == "Enplace, 75 ops … 10 s, edited"
    assert by_words(PLANS[2], PLANS, len, 20) == "Enplace … edited"
    assert by_words(PLANS[3], PLANS, len, 24) == "Enplace, 75 ops … 30 s"


def test_only_where_no_whole_words_fit_the_first_is_cut():
    assert by_words("block_down", ["block_up"], len, 9) == "bloc…down"
    assert by_words("block_down", ["other"], len, 9) == "block…"
    assert by_words("unbreakable", [], len, 5) == "unbr…"


def test_a_text_alone_keeps_both_ends():
    text = "as “Enplace, edited” but for 200 ops"
    assert by_ends(text, len, 40) == text
    assert by_ends(text, len, 24) == "as … but for 200 ops"
    assert by_ends(text, len, 28) == "as … edited” but for 200 ops"
    assert by_ends("Reshape of ∇ softmax cross entropy with logits", len, 30) == (
        "Reshape of ∇ softmax … logits"
    )
