"""A forward proxy that does not let this machine through, as an error that ends the call.

It says so to a tunnel for https (403 or 407) and to any other request (407); waiting mends neither.
"""

import re

from pww.errors import CentralError

PROXY_ASKS = 407
"""No central answers with it."""
_TUNNEL = re.compile(r"(?:Tunnel connection failed: )?(?:403|407)\b")


def not_let_through(fault: BaseException, *, url: str) -> CentralError | None:
    """A failed connection as the error that ends the call; None where trying again may help.

    `http.client` and `httpx` both tell the proxy's status in the text of what they raise.
    """
    told = str(fault)
    if not _TUNNEL.match(told):
        return None
    return _refused(url, told)


def credentials_wanted(url: str) -> CentralError:
    """What an answer with status 407 means."""
    return _refused(url, f"HTTP {PROXY_ASKS}")


def _refused(url: str, told: str) -> CentralError:
    return CentralError(
        f"{url}: the proxy does not let this machine through ({told}): give it credentials in "
        "HTTPS_PROXY (or HTTP_PROXY), or name the host in NO_PROXY"
    )
