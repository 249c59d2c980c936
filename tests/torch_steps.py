"""Recorded steps as JSON, so that what is made of them is tested without PyTorch."""

import json
from dataclasses import asdict, fields
from pathlib import Path

from enplace.frameworks.torch.step import RecordedOp, Step, Storage, Work

FOLDER = Path(__file__).parent / "core" / "frameworks" / "torch" / "steps"


def read_step(name):
    """Return one of the steps that are kept here; ``live/test_recorder.py`` records them anew."""
    return step_from_json(json.loads((FOLDER / f"{name}.json").read_text()))


def step_to_json(step):
    """Write a step without what is as usual."""
    return {
        "name": step.name,
        "batch_shapes": step.batch_shapes,
        "tied": step.tied,
        "storages": [_unusual(Storage, each) for each in step.storages],
        "ops": [_unusual(RecordedOp, each) for each in step.ops],
    }


def step_from_json(data):
    def op(each):
        more = {"reads": tuple((a, b) for a, b in each.get("reads", ()))}
        more |= {key: tuple(each.get(key, ())) for key in ("writes", "makes")}
        return RecordedOp(**{**each, **more, "work": Work(**each.get("work", {}))})

    shapes = tuple(tuple(each) for each in data["batch_shapes"])
    storages = tuple(Storage(**each) for each in data["storages"])
    tied = tuple(map(tuple, data["tied"]))
    return Step(data["name"], tuple(map(op, data["ops"])), storages, shapes, tied=tied)


def _unusual(kind, value):
    usual = {each.name: each.default for each in fields(kind)}
    found = {name: each for name, each in asdict(value).items() if each != usual[name]}
    if "work" in found:
        found["work"] = _unusual(Work, value.work)
        if not found["work"]:
            del found["work"]
    return found
