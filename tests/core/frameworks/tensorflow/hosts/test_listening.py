"""A server that listens on all interfaces is reachable at some addresses only."""

import socket
from ipaddress import ip_address

import pytest

from enplace.frameworks.tensorflow.hosts.listening import (
    accept_only,
    addresses_of,
    is_every,
    is_here,
    is_loopback,
)

TIMEOUT_S = 0.3
"""Packets to another address are dropped, so a client would wait for ever."""


def server(family, host):
    made = socket.socket(family)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind((host, 0))
    made.listen()
    return made


def reaches(host, port):
    try:
        socket.create_connection((host, port), TIMEOUT_S).close()
    except OSError:
        return False
    return True


def is_closed(client):
    client.settimeout(TIMEOUT_S)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")])
@pytest.mark.parametrize("allowed", ["127.0.0.1", "127.0.0.2", "::1"])
def test_only_the_allowed_address_is_reached(family, host, allowed):
    with server(family, host) as listening:
        port = listening.getsockname()[1]
        accept_only(port, [ip_address(allowed)])
        reached = [each for each in ("127.0.0.1", "127.0.0.2", "::1") if reaches(each, port)]
    assert reached == [allowed] or (family == socket.AF_INET and allowed == "::1" and not reached)


def test_several_addresses_are_reached():
    with server(socket.AF_INET6, "::") as listening:
        port = listening.getsockname()[1]
        accept_only(port, [ip_address("::1"), ip_address("127.0.0.1"), ip_address("127.0.0.3")])
        assert reaches("::1", port)
        assert reaches("127.0.0.1", port)
        assert reaches("127.0.0.3", port)
        assert not reaches("127.0.0.2", port)


@pytest.mark.parametrize(
    ("host", "is_found"),
    [("127.0.0.1", True), ("localhost", True), ("203.0.113.7", False), ("0.0.0.0", False)],
)
def test_a_host_is_here_if_this_machine_has_its_address(host, is_found):
    assert is_here(host) is is_found


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "::", "0:0::0"])
def test_the_address_that_stands_for_all_is_known_however_it_is_written(host):
    assert is_every(host)
    assert not is_every("127.0.0.1")
    assert not is_every("no-such-host")


def test_who_connected_before_the_filter_is_disconnected():
    with server(socket.AF_INET6, "::") as listening:
        port = listening.getsockname()[1]
        early = socket.create_connection(("127.0.0.2", port), TIMEOUT_S)
        accepted = listening.accept()[0]
        waiting = socket.create_connection(("127.0.0.2", port), TIMEOUT_S)
        with early, accepted, waiting:
            accept_only(port, [ip_address("127.0.0.1")])
            assert is_closed(early)
            assert is_closed(waiting)


def test_who_may_connect_stays_connected():
    with server(socket.AF_INET6, "::") as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, listening.accept()[0] as own:
            accept_only(port, [ip_address("127.0.0.1")])
            own.sendall(b"hello")
            assert client.recv(5) == b"hello"


def test_other_servers_of_the_process_are_left_alone():
    with server(socket.AF_INET, "0.0.0.0") as one, server(socket.AF_INET, "0.0.0.0") as other:
        accept_only(one.getsockname()[1], [ip_address("127.0.0.1")])
        assert reaches("127.0.0.2", other.getsockname()[1])


def test_a_port_where_nothing_listens_is_refused():
    with server(socket.AF_INET, "127.0.0.1") as listening:
        port = listening.getsockname()[1]
    with pytest.raises(OSError, match="nothing listens"):
        accept_only(port, [ip_address("127.0.0.1")])


def test_a_name_stands_for_its_addresses():
    assert addresses_of("10.1.2.3") == [ip_address("10.1.2.3")]
    assert is_loopback(addresses_of("localhost"))
    assert addresses_of("::ffff:127.0.0.1") == [ip_address("127.0.0.1")]
    assert is_every("::ffff:0.0.0.0")
    assert not is_loopback(addresses_of("10.1.2.3"))
