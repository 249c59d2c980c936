"""Programs that `torch.export` saves, as estimates; `make test-torch` has PyTorch and runs them."""

import json
import sys
import zipfile

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from enplace.errors import EnplaceError  # noqa: E402
from enplace.frameworks.jobs import measure_profile  # noqa: E402
from enplace.frameworks.source import source_of  # noqa: E402
from enplace.frameworks.torch.open.exported import read_program  # noqa: E402
from enplace.frameworks.torch.open.replay import record_program  # noqa: E402
from enplace.processes.worker import ignore  # noqa: E402
from enplace.values.op_kinds import OpPass  # noqa: E402
from forking import run_fork  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(32, 64), nn.Linear(64, 32), nn.LayerNorm(32)

    def forward(self, x):
        with torch.no_grad():
            scale = x.mean(-1, keepdim=True)
        heads = x.view(*x.shape[:-1], 4, 8).transpose(1, 2)
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        x = x + attended.transpose(1, 2).reshape(x.shape) * scale
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight
        self.drop = nn.Dropout(0.1)

    def forward(self, ids):
        x = self.drop(self.embed(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


IDS = torch.zeros(4, 16, dtype=torch.int64)


@pytest.fixture(scope="module")
def model():
    return Model().eval()


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "model.pt2"
    sizes = ({0: torch.export.Dim("batch", min=2, max=512)},)
    torch.export.save(torch.export.export(model, (IDS,), dynamic_shapes=sizes, strict=False), path)
    return path


def step_of(path, **wanted):
    source = source_of(str(path), **wanted)
    return record_program(read_program(source.path), source, ignore).step


def counted(model, ids):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids)
    found = counter.get_flop_counts()["Global"]
    return found[torch.ops.aten.addmm] + found.get(torch.ops.aten.mm, 0)


def test_a_program_gives_a_forward_pass_by_module_without_its_weights(model, saved):
    source = source_of(str(saved), estimate="h100")
    profile = measure_profile(source, "", 0, 0)
    assert set(profile.op_passes) == {OpPass.FORWARD}
    assert {"embed", "blocks_0/up", "blocks_1/down", "head"} <= set(profile.scopes)
    assert "embed.weight" in profile.measured.config["parameters"]
    assert profile.measured.estimated == "H100"
    assert profile.measured.batch_shapes == ((4, 16),)
    assert np.nanmax(profile.time_us) > 0
    (size,) = (each for each in profile.measured.notes if "leaves 1 size open: s" in each)
    assert "of 'enplace import', chooses another" in size  # 'enplace profile' has no --size


@pytest.mark.parametrize("batch", [0, 64])
def test_its_flops_are_those_that_pytorch_counts(model, saved, batch):
    step = step_of(saved, batch_size=batch)
    ids = torch.zeros(batch or 4, 16, dtype=torch.int64)
    flops = {op.kind: 0.0 for op in step.ops}
    for op in step.ops:
        flops[op.kind] += op.work.flops
    assert flops["addmm"] + flops.get("mm", 0) == counted(model, ids)
    (attention,) = (value for kind, value in flops.items() if "attention" in kind)
    assert attention == 2 * 4 * (len(ids) * 4) * 16 * 16 * 8  # of two layers
    assert step.batch_shapes == (tuple(ids.shape),)


def test_its_storages_are_those_of_the_model(model, saved):
    step, is_new = step_of(saved), zipfile.ZipFile(saved).namelist()[0].startswith("model/")
    held = sum(each.n_bytes for each in step.storages if each.role == "parameter")
    tied = model.head.weight.numel() * 4 * (not is_new)  # an older file does not tell
    assert held == sum(each.numel() * 4 for each in model.parameters()) + tied
    assert dict(step.tied) == ({"head.weight": "embed.weight"} if is_new else {})
    assert step.counted_peak_bytes("cpu") < 4 * held + 100_000


def rewritten(saved, path, change):
    """Save the program again with another graph."""
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith(("models/model.json", "exported_program.json")):
                made = json.loads(content)
                change(made["graph_module"]["graph"])
                content = json.dumps(made).encode()
            new.writestr(name, content)
    return str(path)


def targeted(target):
    def change(graph):
        graph["nodes"][0]["target"] = target

    return change


def of_a_file(graph):
    text = {"name": "filename", "arg": {"as_string": "/tmp/enplace-must-not-exist"}, "kind": 1}
    shared = {"name": "shared", "arg": {"as_bool": True}, "kind": 1}
    size = {"name": "size", "arg": {"as_int": 9}, "kind": 1}
    graph["nodes"][0] |= {"target": "torch.ops.aten.from_file.default",
                          "inputs": [text, shared, size]}  # fmt: skip


def of_no_type(graph):
    graph["tensor_values"]["ids"]["dtype"] = 77


def of_wrong_sizes(graph):
    graph["tensor_values"]["p_blocks_0_up_weight"]["sizes"] = [{"as_int": 5}, {"as_int": 3}]
    graph["tensor_values"]["p_blocks_0_up_weight"]["strides"] = [{"as_int": 3}, {"as_int": 1}]


def of_nothing(graph):
    graph["nodes"][0]["inputs"][0]["arg"] = {"as_tensor": {"name": "nobody"}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (targeted("torch.ops.aten.no_such_op.default"), r"'aten\.no_such_op\.default'\) is an op"),
        (targeted("torch.ops.mine.op.default"), "it is of another version or library"),
        (targeted("torch.ops.load_library"), "is an op that PyTorch .* does not have"),
        (targeted("torch.ops.aten.save.default"), "reads or writes a file; do not trust it"),
        (targeted("os.system"), r"'os\.system'\) is an op that Enplace does not know"),
        (targeted("torch.ops.higher_order.while_loop"), "is an op that Enplace does not read"),
        (of_a_file, "reads or writes a file; do not trust it"),
        (of_no_type, "has no type with the number 77"),
        (of_wrong_sizes, "does not suit its tensors"),
        (of_nothing, "reads 'nobody', which nothing made"),
    ],
)
def test_an_op_that_cannot_run_is_one_line_and_nothing_of_the_file_runs(
    saved, tmp_path, change, why
):
    path = rewritten(saved, tmp_path / "hostile.pt2", change)
    with pytest.raises(EnplaceError, match=why) as error:
        measure_profile(source_of(path), "", 0, 0) if change is of_a_file else step_of(path)
    assert "\n" not in str(error.value)


BRANCHING = """
import torch
from torch import nn


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        rows = x.nonzero().shape[0] + 1
        x = torch.cond(x.sum() > 0, lambda y: self.layer(y) + 1, lambda y: self.layer(y), (x,))
        return x.sum() * rows


program = torch.export.export(Branching(), (torch.ones(4, 8),), strict=False)
torch.export.save(program, "branching.pt2")
"""


def test_conditions_and_sizes_that_depend_on_values_are_read(tmp_path):
    run_fork([sys.executable, "-c", BRANCHING], cwd=tmp_path, check=True)
    source = source_of(str(tmp_path / "branching.pt2"))
    found = record_program(read_program(source.path), source, ignore)
    assert [op.kind for op in found.step.ops].count("addmm") == 1
    assert any("the true branch was taken" in each for each in found.about)
