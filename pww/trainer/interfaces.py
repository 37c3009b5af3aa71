"""Which network interface the ranks of one replica talk through.

Gloo takes the address that the host's own name resolves to, which on many machines is loopback: the
ranks of another node then wait for an address that is their own.
"""

import fcntl
import socket
import struct

from pww.errors import TrainerError

_SIOCGIFADDR = 0x8915
_ELSEWHERE = "192.0.2.1"  # an address kept for documentation: nobody has it, so the default route


def named(prefix: str) -> str:
    """The first network interface whose name starts with `prefix`: gloo wants the whole name.

    Raises:
        TrainerError: there is none.
    """
    names = sorted(name for _, name in socket.if_nameindex())
    for name in names:
        if name.startswith(prefix):
            return name
    raise TrainerError(
        f"site.interface={prefix}: no network interface has such a name; this machine has "
        f"{', '.join(names)}; set one of them, or '' to let the library choose"
    )


def towards(host: str) -> str:
    """The interface on the way to `host`, else on the way out, but loopback; "" if there is none.

    Nothing is sent: connecting a datagram socket only asks the routing table.
    """
    mine = _addresses()
    for target in (host, _ELSEWHERE):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((target, 9))
            except OSError:
                continue
            name = mine.get(probe.getsockname()[0], "")
        if name:
            return name
    return ""


def _addresses() -> dict[str, str]:
    """IPv4 address to interface, loopback (127.0.0.0/8) left out."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asker.fileno(), _SIOCGIFADDR, request)
            except OSError:  # it has none
                continue
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith("127."):
                found[address] = name
    return found
