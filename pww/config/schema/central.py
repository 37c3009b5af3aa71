"""Where the central is, or what it is."""

from typing import Annotated, Literal

from pydantic import Field

from pww.config.schema.base import Port, Seconds, Section


class Security(Section):
    """What the central knows its sites by."""

    keys: str  # folder that `pww.central init` made; "none": no credentials, loopback only


Role = Literal["coordinator", "aggregator"]
"""A service of the central that may run in a process of its own."""


class Central(Section):
    """Where the central is and how to prove who asks (`url`, `bundle`), or where it listens."""

    url: str  # "none": train alone, the outer step in this process
    bundle: str  # folder with this site's keys and the central's CA; "none" on loopback
    security: Security
    roles: Annotated[tuple[Role, ...], Field(strict=False)]  # what this process serves
    host: str
    port: Port
    aggregator_port: Port
    blob_port: Port
    blob_quota_gb: Annotated[float, Field(gt=0, le=1e9)]  # of uploads that wait to be merged
    keep_deltas: bool  # merged payloads stay on disk, for a replay without some of them
    manifest: str  # "none": of the corpus that `data` names
    linger_s: Annotated[float, Field(ge=0, le=1e9)]  # for sites that were silent at the end
    patience_s: Seconds  # a site that was asked for theta(0) is waited for this long
