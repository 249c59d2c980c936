"""Which address a server can be reached at.

TensorFlow's servers listen on all interfaces, and have no option for it. So the kernel drops the
packets that are sent to any other address of this machine: a socket filter, which needs no rights.
Tools such as ``ss`` show the interfaces, ``*``, and not the filter.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address

Address = IPv4Address | IPv6Address

_SO_ATTACH_FILTER = 26
_NETWORK_HEADER = -0x100000
"""Added to an offset, it counts from the start of the IP header."""

_LOAD_WORD, _LOAD_BYTE, _SHIFT_RIGHT, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x30, 0x74, 0x15, 0x06
_ACCEPT, _DROP = 0xFFFFFFFF, 0
_TO_V4, _TO_V6 = 16, 24
"""Where the destination address is in an IP header."""


def addresses_of(host: str) -> list[Address]:
    """Return the addresses that a host's name stands for here.

    Raises
    ------
    OSError
        If there is no such host.
    """
    found = {_plain(ip_address(each[4][0])) for each in socket.getaddrinfo(host, None)}
    return sorted(found, key=str)


def is_here(host: str) -> bool:
    """Return whether this machine has an address of a host's name, so that packets to it arrive.

    Raises
    ------
    OSError
        If there is no such host.
    """
    for family, *_, place in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        if ip_address(place[0]).is_unspecified:
            continue
        with suppress(OSError), socket.socket(family) as probe:
            probe.bind(place)
            return True
    return False


def is_every(host: str) -> bool:
    """Return whether a host is written as the address that stands for all of a machine: 0.0.0.0."""
    with suppress(OSError):  # it is a name
        found = socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
        return any(_plain(ip_address(each[4][0])).is_unspecified for each in found)
    return False


def is_loopback(addresses: Sequence[Address]) -> bool:
    """Return whether only this machine can reach a host with these addresses."""
    return all(address.is_loopback for address in addresses)


def accept_only(port: int, addresses: Sequence[Address]) -> None:
    """Make this process's servers at a port reachable at some addresses of this machine only.

    Whoever has connected to another one before is disconnected.

    Raises
    ------
    OSError
        If nothing listens at that port, or the system does not allow it.
    """
    code = b"".join(_filter(addresses))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HL", len(code) // 8, ctypes.addressof(buffer))
    found = 0
    for each in _sockets(port):
        with each:
            if _listens(each):
                each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
                found += 1
    if not found:
        raise OSError(f"nothing listens at port {port}")
    for _ in range(2):  # the server may be about to accept somebody who came before the filter
        for each in _sockets(port):
            with each:
                _disconnect(each, addresses)


def _sockets(port: int) -> Iterator[socket.socket]:
    """Yield a second handle of each socket of this process at a port, to be closed."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] == port:
                yield found
            else:
                found.close()


def _listens(each: socket.socket) -> bool:
    return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _disconnect(each: socket.socket, addresses: Sequence[Address]) -> None:
    """Disconnect whoever has connected to another address; at a server, all who wait for it."""
    if _listens(each):
        blocks = os.get_blocking(each.fileno())
        os.set_blocking(each.fileno(), False)
        with suppress(BlockingIOError):
            while True:
                each.accept()[0].close()
        os.set_blocking(each.fileno(), blocks)
    elif _plain(ip_address(each.getsockname()[0])) not in addresses:
        with suppress(OSError):  # it has gone already
            each.shutdown(socket.SHUT_RDWR)


def _plain(address: Address) -> Address:
    """Return an IPv4 address as such, even if a socket for both shows it as IPv6."""
    return getattr(address, "ipv4_mapped", None) or address


def _filter(addresses: Sequence[Address]) -> list[bytes]:
    """Return the kernel's instructions: accept packets sent to one of the addresses."""
    to_v4, to_v6 = [_step(_LOAD_WORD, _NETWORK_HEADER + _TO_V4)], []
    for address in addresses:
        if isinstance(address, IPv4Address):
            to_v4 += [_skip_unless(int(address), 1), _step(_RETURN, _ACCEPT)]
            continue
        for number, word in enumerate(struct.unpack("!4I", address.packed)):
            to_v6 += [
                _step(_LOAD_WORD, _NETWORK_HEADER + _TO_V6 + 4 * number),
                _skip_unless(word, 7 - 2 * number),
            ]
        to_v6.append(_step(_RETURN, _ACCEPT))
    drop = _step(_RETURN, _DROP)
    version = [_step(_LOAD_BYTE, _NETWORK_HEADER), _step(_SHIFT_RIGHT, 4)]
    return [*version, _skip_unless(4, len(to_v4) + 1), *to_v4, drop, *to_v6, drop]


def _step(code: int, value: int) -> bytes:
    return struct.pack("HBBI", code, 0, 0, value & 0xFFFFFFFF)


def _skip_unless(value: int, count: int) -> bytes:
    """Skip some instructions unless the last value loaded is this one."""
    return struct.pack("HBBI", _JUMP_IF_EQUAL, 0, count, value)
