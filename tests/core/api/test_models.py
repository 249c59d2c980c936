"""ONNX models in Python."""

import re

import pytest

import enplace as ep
import onnx_models


def test_an_onnx_model_is_read_with_estimated_times(tmp_path):
    path = onnx_models.save(onnx_models.language_model(1), tmp_path / "m.onnx")
    profile = ep.read_onnx(path, gpu="A100", batch_size=3, sizes={"sequence_length": 7})
    assert profile.measured.estimated == "A100"
    sizes = {"batch_size": 3, "sequence_length": 7, "past_sequence_length": 128}
    assert profile.measured.config["sizes"] == sizes
    assert "estimated step time" in repr(ep.place(profile, "h200-2-nvlink", "heft"))
    again = ep.from_networkx(ep.to_networkx(profile))
    assert (again.measured.estimated, again.measured.estimated_speed) == ("A100", 0.45)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"batch_size": 0}, "batch_size is 0; use a whole number from 1 to"),
        ({"sizes": {"n": "3"}}, "sizes['n'] is '3'; use a whole number"),
        ({"gpu": "h10"}, "option 'gpu' cannot be 'h10'; use h200, h100, a100, v100"),
        (
            {"sizes": {"nowhere": 3}},
            'm.onnx: no input has a size called "nowhere"; use one of batch',
        ),
    ],
)
def test_what_cannot_be_chosen_is_refused_in_one_line(tmp_path, asked, why):
    path = onnx_models.save(onnx_models.flattened(), tmp_path / "m.onnx")
    with pytest.raises(ep.EnplaceError, match=re.escape(why)):
        ep.read_onnx(path, **asked)


def test_another_file_is_no_onnx_model(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import keras")
    with pytest.raises(ep.EnplaceError, match="ONNX does not open this"):
        ep.read_onnx(path)


def test_what_is_no_model_is_refused_with_the_kind_that_was_asked_for(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(ep.EnplaceError, match=r"x.json: not a model; choose .*\(\.onnx\)$"):
        ep.read_onnx(path)
