"""Two servers on this machine stand for two hosts; none outlives its run."""

import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from threading import Event

import psutil
import pytest
import tensorflow as tf

from enplace.errors import EnplaceError
from enplace.frameworks.tensorflow.apply.run import run_plan
from enplace.frameworks.tensorflow.devices import parse_devices
from enplace.frameworks.tensorflow.hosts import servers as hosts_module
from enplace.frameworks.tensorflow.hosts.servers import HostsError, gpus_of, serving, start_server
from enplace.frameworks.tensorflow.measure import transfers
from steps import problem_of, scattered_plan

TASKS = ("/job:worker/task:0", "/job:worker/task:1")


def hosts(folder, tasks=TASKS, **more):
    path = folder / "cluster.json"
    devices = [
        {"name": f"{task}/device:CPU:0", "kind": "cpu", "capacity_bytes": 1 << 30} for task in tasks
    ]
    links = {"cpu-cpu": {"b0_us": 200, "b1_us_per_byte": 0.001}}
    path.write_text(json.dumps({"devices": devices, "default_links": links, **more}))
    return parse_devices(str(path))


def servers():
    """List the server processes that this process started."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "enplace.frameworks.tensorflow.worker:serve" in " ".join(child.cmdline())
    ]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Addresses of two servers that Enplace has started; they stop even after an error."""
    ports = []
    usual = hosts_module._free_ports
    with pytest.MonkeyPatch.context() as patch, suppress(EnplaceError):
        patch.setattr(hosts_module, "_free_ports", lambda n: ports.extend(usual(n)) or ports)
        with serving(hosts(tmp_path_factory.mktemp("served"))) as target:
            assert target == f"grpc://127.0.0.1:{ports[0]}"
            assert len(servers()) == len(TASKS)
            yield [f"127.0.0.1:{port}" for port in ports]
            raise EnplaceError("enough")
    assert not servers()


@pytest.fixture
def joined(served, tmp_path):
    """The devices of these servers."""
    return hosts(tmp_path, hosts=dict(zip(TASKS, served, strict=True)))


def test_a_plan_runs_exactly_as_planned_across_two_hosts(joined, all_steps):
    step = all_steps["fit"]
    problem = problem_of(step, joined.cluster)
    run = run_plan(step, problem, scattered_plan(problem, policy="strict"), joined, 20)
    assert run.ops_on_planned_device == run.ops_checked > 100
    assert set(run.op_device.tolist()) == {-1, 0, 1}
    assert run.order_violations == 0
    assert run.loss_difference == 0.0
    assert run.weights_difference == 0.0


def test_tasks_of_one_host_share_out_its_gpus(tmp_path, monkeypatch):
    tasks = ["/job:worker/task:0", "/job:worker/task:1", "/job:worker/task:2"]
    at = dict(zip(tasks, ("10.0.0.1:9000", "10.0.0.1:9001", "10.0.0.2:9000"), strict=True))
    names = [f"{tasks[0]}/device:GPU:{i}" for i in range(2)]
    names += [f"{task}/device:GPU:0" for task in tasks[1:]]
    devices = [{"name": name, "kind": "gpu", "capacity_bytes": 1 << 30} for name in names]
    path = tmp_path / "cluster.json"
    links = {"gpu-gpu": {"b0_us": 200, "b1_us_per_byte": 0.001}}
    path.write_text(json.dumps({"devices": devices, "default_links": links, "hosts": at}))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a card"] * 4)
    assert [gpus_of(parse_devices(str(path)), task) for task in tasks] == ["0,1", "2", ""]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a card"] * 2)
    assert gpus_of(parse_devices(str(path)), tasks[1]) == ""


def test_servers_are_reachable_at_their_own_address_only(served):
    port = int(served[0].rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port), 60).close()
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.2", port), 0.3)


def test_transfers_between_servers_are_measured(joined, monkeypatch):
    monkeypatch.setattr(transfers, "SIZES", (1 << 12, 1 << 16, 1 << 22))
    with serving(joined) as target:
        cluster, measured = transfers.measure_transfers(joined, target, lambda *_: None)
    names = [device.name for device in joined.cluster.devices]
    assert [(link.source, link.target) for link in measured] == [(*names,), (*names[::-1],)]
    for link, each in zip(cluster.links, measured, strict=True):
        assert each.time_us[-1] > each.time_us[0] > 0
        assert link.b1_us_per_byte == each.b1_us_per_byte > 0


def test_running_servers_are_used(tmp_path):
    with listening(2) as addresses:
        named = dict(zip(TASKS, addresses, strict=True))
        before = servers()
        with serving(hosts(tmp_path, hosts=named)) as target:
            assert target == f"grpc://{addresses[0]}"
            assert servers() == before


@contextmanager
def listening(count):
    """Listen on free ports and yield their addresses."""
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        yield [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def test_a_missing_server_is_named_with_the_command_to_start_it(tmp_path):
    with listening(1) as (first,), listening(1) as (gone,):
        pass
    with listening(1) as (first,):
        devices = hosts(tmp_path, hosts=dict(zip(TASKS, (first, gone), strict=True)))
        match = r"no server of /job:worker/task:1.*enplace serve"
        with pytest.raises(HostsError, match=match), serving(devices):
            pass


def test_losing_a_server_ends_the_run_and_names_the_server(tmp_path, monkeypatch):
    reasons, gave_up = [], Event()

    def give_up(why):
        reasons.append(why)
        gave_up.set()

    monkeypatch.setattr("enplace.frameworks.tensorflow.hosts.servers.LOOK_S", 0.01)
    monkeypatch.setattr("enplace.frameworks.tensorflow.hosts.servers.give_up", give_up)
    with listening(1) as (first,), ExitStack() as second:
        (other,) = second.enter_context(listening(1))
        named = dict(zip(TASKS, (first, other), strict=True))
        with serving(hosts(tmp_path, hosts=named)):
            second.close()
            assert gave_up.wait(300)
    assert reasons[0] == f"the server of /job:worker/task:1 at {other} no longer answers"


def test_a_task_without_an_address_is_named(tmp_path):
    devices = hosts(tmp_path, hosts={TASKS[0]: "127.0.0.1:4001"})
    with pytest.raises(HostsError, match=r"no address for /job:worker/task:1"), serving(devices):
        pass


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (
            "0.0.0.0:4001",
            "'0.0.0.0' is every address of a machine; write the one by which the other hosts reach",
        ),
        ("[::]:4001", "'::' is every address of a machine; write the one by which"),
        (
            "203.0.113.7:4001",
            "'203.0.113.7' is 203.0.113.7, which is no address of this machine; write this "
            "machine's own address in the cluster file",
        ),
    ],
)
def test_an_address_at_which_nobody_reaches_the_server_is_refused(tmp_path, address, why):
    devices = hosts(tmp_path, TASKS[:1], hosts={TASKS[0]: address})
    with pytest.raises(HostsError, match=re.escape(why)):
        start_server(devices, TASKS[0])


def test_a_run_does_not_look_for_a_server_at_every_address(tmp_path):
    devices = hosts(tmp_path, hosts={TASKS[0]: "127.0.0.1:4001", TASKS[1]: "0.0.0.0:4002"})
    with pytest.raises(HostsError, match=f"{TASKS[1]}: '0.0.0.0' is every"), serving(devices):
        pass


ADDRESS_IS_TAKEN = """
import socket
import psutil
from enplace.frameworks.tensorflow.hosts import servers as hosts
from enplace.frameworks.tensorflow.devices import parse_devices

with socket.create_server(("127.0.0.1", 0)) as taken:
    hosts._free_ports = lambda count: [taken.getsockname()[1]] * count
    try:
        hosts.serving(parse_devices("cluster.json")).__enter__()
    except hosts.HostsError as error:
        print(error)
assert not psutil.Process().children()
"""


def test_a_server_that_fails_to_start_reports_the_reason(tmp_path, run_python):
    hosts(tmp_path, TASKS[:1])
    done = run_python(tmp_path, "-c", ADDRESS_IS_TAKEN)
    assert done.returncode == 0, done.stderr
    assert re.match(r"the server of /job:worker/task:0 did not start: .+", done.stdout)


def test_the_serve_command_runs_until_it_is_interrupted(tmp_path):
    with listening(1) as (address,):
        pass
    hosts(tmp_path, TASKS[:1], hosts={TASKS[0]: address})
    before = servers()
    command = [sys.executable, "-m", "enplace", "serve", str(tmp_path / "cluster.json"), TASKS[0]]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline() == f"serving {TASKS[0]}\n"
        (server,) = set(servers()).difference(before)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    assert process.returncode == 130
    assert not server.is_running()
