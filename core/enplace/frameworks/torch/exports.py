"""A plan's stages for PyTorch's own pipelines, by the names of modules."""

from __future__ import annotations

import json
import re
from collections import defaultdict

from enplace.errors import PlanError
from enplace.frameworks.torch.device_map import PARAMETERS, block_of
from enplace.frameworks.torch.names import scope_of_module
from enplace.names.passes import split_pass
from enplace.names.whole import find_chain
from enplace.text import listed
from enplace.values.result import Result
from enplace.writers.layers_per_stage import ABOUT_MARK, Stage, about, find_stages, why_not_by
from enplace.writers.registry import Exporter, Write

_NUMBER = re.compile(r"_(\d+)(?=/|$)")


def write_split_spec(result: Result) -> str:
    """Write where ``torch.distributed.pipelining`` cuts a model, as a module of Python."""
    stages = _untied(result, find_stages(result))
    paths, lines, at = _layer_paths(result), [], 0
    for stage in stages[:-1]:
        at += len(stage.layers)
        path, side = (paths[at], "BEGINNING") if at < len(paths) else (paths[-1], "END")
        lines.append(f'    "{path}": SplitPoint.{side},\n')
    return _SPLIT_SPEC.format(about=about(result, stages), points="".join(lines))


_SPLIT_SPEC = '''"""Where torch.distributed.pipelining cuts a model.

{about} In each process of torchrun:

    pipe = pipeline(model, mb_args=(x,), split_spec=SPLIT_SPEC)
    stage = pipe.build_stage(rank, device)
"""

from torch.distributed.pipelining import SplitPoint

SPLIT_SPEC = {{
{points}}}
'''


def write_torchtitan(result: Result) -> str:
    """Write the modules of each part, as torchtitan names those of its language models."""
    stages = _untied(result, find_stages(result, kinds=False))
    parts = [[f"layers.{layer}" for layer in stage.layers] for stage in stages]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return f"{json.dumps(parts)}\n"


def _layer_paths(result: Result) -> list[str]:
    """Return the path of each layer's module, in the order of the model."""
    profile = result.schedule.problem.measured_profile
    path_of = {}
    for path in profile.measured.config[PARAMETERS]:
        parts = path.split(".")
        for end in range(1, len(parts)):
            module = ".".join(parts[:end])
            path_of[scope_of_module(module)] = module
    chain = find_chain(profile)
    assert chain is not None
    blocks = [block_of(split_pass(profile.scopes[ops[0]])[1]) for ops in chain.ops]
    # Only parameters say whether a number was behind a dot; without any, it was.
    return [path_of.get(each, _NUMBER.sub(r".\1", each).replace("/", ".")) for each in blocks]


def _untied(result: Result, stages: list[Stage]) -> list[Stage]:
    """Refuse stages that would have copies of one parameter, which drift apart."""
    profile = result.schedule.problem.measured_profile
    if not profile.measured.config.get(PARAMETERS):
        raise PlanError("the profile is not of one PyTorch model; profile a script that trains one")
    chain = find_chain(profile)
    assert chain is not None
    stage_of = [at for at, stage in enumerate(stages) for _ in stage.layers]
    parts = [
        (chain.before, 0),
        (chain.after, len(stages) - 1),
        *zip(chain.ops, stage_of, strict=True),
    ]
    stages_of: dict[str, set[int]] = defaultdict(set)
    for ops, at in parts:
        for op in ops.tolist():
            stages_of[profile.scopes[op]].add(at)
    paths_of: dict[str, list[str]] = defaultdict(list)
    for path, op in profile.measured.config[PARAMETERS].items():
        paths_of[op].append(path.rpartition(".")[0])
    for paths in paths_of.values():
        on = set().union(*(stages_of[scope_of_module(path)] for path in paths))
        if len(paths) > 1 and len(on) > 1:
            named = listed([f"'{path}'" for path in dict.fromkeys(paths)])
            raise PlanError(
                f"{named} share a parameter, and their copies in two stages would drift apart; "
                f"untie them"
            )
    return stages


def _exporter(name: str, title: str, suffix: str, write: Write, mark: str) -> Exporter:
    return Exporter(name, title, suffix, write, why_not=why_not_by(write), mark=mark)


EXPORTERS = (
    _exporter("split-spec", "split points of PyTorch", ".split.py", write_split_spec, ABOUT_MARK),
    _exporter(
        "torchtitan",
        "modules per part of torchtitan",
        ".torchtitan.json",
        write_torchtitan,
        r'^\[\["tok_embeddings"',
    ),
)
