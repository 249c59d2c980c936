"""METIS and Scotch: balanced parts, cheap cuts and file formats."""

import sys

import numpy as np
import pytest
from hypothesis import given
from tests.core.placers.problems import gpus, line, problems
from tests.core.processes.test_worker import is_gone

from enplace.errors import CancelledError, EnplaceError
from enplace.machine import simulate
from enplace.placers import PlaceOptions, Stop, place, placers
from enplace.placers.partition import run_scotch, weighted_graph
from enplace.solvers.scotch_process import SCOTCH
from enplace.values.problem import Problem

installed = [name for name in ("metis", "scotch") if placers()[name].installed]
each_partitioner = pytest.mark.parametrize("method", installed)


def two_chains(**extra):
    """Return two chains of ten ops with one cheap edge between them."""
    edges = [(i, i + 2, 1000) for i in range(18)]
    edges.append((18, 19, 1))
    return line([5.0] * 20, edges, **extra)


@each_partitioner
def test_the_graph_is_cut_where_little_is_sent(method):
    device = place(Problem(two_chains(), gpus(2, b0=0.0, b1=1.0)), method).plan.device
    assert len(set(device[::2].tolist())) == len(set(device[1::2].tolist())) == 1
    assert device[0] != device[1]


@each_partitioner
def test_a_faster_gpu_gets_more_work(method):
    problem = Problem(line([10.0] * 60, []), gpus(2, speeds=[1.0, 2.0]))
    assert np.bincount(place(problem, method).plan.device).tolist() == pytest.approx(
        [20, 40], abs=3
    )


@each_partitioner
def test_parts_are_balanced_by_memory_if_they_would_not_fit(method):
    heavy = [200, 200] + [0] * 10 + [200, 200]
    profile = line([1.0, 1.0] + [10.0] * 10 + [1.0, 1.0], [], persistent=heavy)
    problem = Problem(profile, gpus(2, capacity=450))
    assert simulate(problem, place(problem, method).plan).fits


@given(problem=problems())
def test_the_graph_is_symmetric_and_its_weights_are_positive(problem):
    node, graph = weighted_graph(problem)
    rows = np.repeat(np.arange(len(graph.node_weight)), np.diff(graph.ptr))
    weight_of = dict(zip(zip(rows, graph.neighbour, strict=True), graph.edge_weight, strict=True))
    assert len(weight_of) == len(rows)
    assert all(weight_of[b, a] == weight for (a, b), weight in weight_of.items())
    assert graph.node_weight.min() >= 1
    assert (rows != graph.neighbour).all()
    assert node.max() + 1 == len(graph.node_weight)
    assert graph.share.sum() == pytest.approx(1)


STAND_IN = """#!{python}
# Reads the graph as Scotch does, complains of what is wrong, and puts node i on part i % n.
import os, sys
assert os.environ["SCOTCH_PTHREAD_NUMBER"] == "1"
options, source, target, mapping = sys.argv[1:]
numbers = iter(open(source).read().split())
assert next(numbers) == "0" and options.startswith("-b")
n, arcs, base, flags = (next(numbers) for _ in range(4))
assert (base, flags) == ("0", "011")
for node in range(int(n)):
    weight, degree = int(next(numbers)), int(next(numbers))
    arcs = int(arcs) - degree
    for _ in range(degree):
        assert int(next(numbers)) >= 1 and 0 <= int(next(numbers)) < int(n)
assert arcs == 0 and not list(numbers)
kind, parts, *shares = open(target).read().split()
assert kind == "cmpltw" and len(shares) == int(parts)
with open(mapping, "w") as file:
    print(n, file=file)
    for node in reversed(range(int(n))):
        print(node, node % int(parts), sep="\\t", file=file)
"""


def install_fake_scotch(folder, monkeypatch, text):
    (folder / SCOTCH).write_text(text)
    (folder / SCOTCH).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_scotch_reads_the_graph_file_and_its_mapping_is_read_back(tmp_path, monkeypatch):
    install_fake_scotch(tmp_path, monkeypatch, STAND_IN.format(python=sys.executable))
    _, graph = weighted_graph(Problem(two_chains(), gpus(3)))
    assert run_scotch(graph, PlaceOptions()).tolist() == [node % 3 for node in range(20)]


def test_a_failing_scotch_is_reported_in_one_line(tmp_path, monkeypatch):
    install_fake_scotch(tmp_path, monkeypatch, "#!/bin/sh\necho 'out of memory' >&2\nexit 1\n")
    _, graph = weighted_graph(Problem(two_chains(), gpus(2)))
    with pytest.raises(EnplaceError, match=r"scotch_gmap failed \(out of memory\)"):
        run_scotch(graph, PlaceOptions())


def test_a_cancelled_scotch_is_killed(tmp_path, monkeypatch):
    started = tmp_path / "started"
    endless = f"#!/bin/sh\necho $$ > {started}.new\nmv {started}.new {started}\nsleep 1000\n"
    install_fake_scotch(tmp_path, monkeypatch, endless)
    _, graph = weighted_graph(Problem(two_chains(), gpus(2)))
    with pytest.raises(CancelledError):
        run_scotch(graph, PlaceOptions(stop=Stop(cancelled=started.exists)))
    assert is_gone(int(started.read_text()))


def test_a_scotch_that_exceeds_the_time_limit_is_reported(tmp_path, monkeypatch):
    install_fake_scotch(tmp_path, monkeypatch, "#!/bin/sh\nsleep 1000\n")
    monkeypatch.setattr("enplace.solvers.ask_solver._GRACE_S", 0.0)
    _, graph = weighted_graph(Problem(two_chains(), gpus(2)))
    with pytest.raises(EnplaceError, match="nothing within the time limit; allow more time"):
        run_scotch(graph, PlaceOptions(stop=Stop(0.0)))


@pytest.mark.parametrize("n_ops", [1, 2, 5])
def test_metis_prints_nothing_with_fewer_ops_than_gpus(n_ops, capfd):
    """METIS would warn on standard output, which may be a JSON document."""
    pytest.importorskip("pymetis")
    problem = Problem(line([float(i + 1) for i in range(n_ops)], []), gpus(8))
    plan = place(problem, "metis").plan
    assert len(set(plan.device.tolist())) == n_ops
    assert capfd.readouterr().out == ""


def test_metis_prints_nothing_where_one_tensor_outweighs_all_others(capfd):
    """It finds no bisection then, and complains."""
    pytest.importorskip("pymetis")
    edges = [(0, 1, 1 << 40), (0, 2, 1 << 40), *((i, i + 1, 8) for i in range(1, 5))]
    place(Problem(line([1.0] * 6, edges), gpus(4)), "metis")
    assert capfd.readouterr().out == ""
