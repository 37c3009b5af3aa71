"""Which interface: by name, by the way to another host, and never loopback."""

import socket

from pww.trainer import interfaces


def names() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def test_the_way_to_another_host_is_an_interface_of_this_machine() -> None:
    for host in ("192.0.2.7", "127.0.0.1", "127.0.1.1", "no-such-host.invalid"):
        assert interfaces.towards(host) in names() - {"lo"} | {""}


def test_loopback_is_no_way_even_to_this_machine() -> None:
    """A host whose own name means 127.0.1.1, as Debian writes it, still finds its network."""
    assert interfaces.towards("127.0.1.1") == interfaces.towards("192.0.2.7")


def test_the_whole_name_for_a_prefix() -> None:
    assert interfaces.named("l") in names()
