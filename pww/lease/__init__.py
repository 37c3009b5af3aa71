"""DARL's pure half: who trains on what, as arithmetic and a state machine. No I/O, no torch."""

from pww.lease.policy import blocks_for_phase, lease_ttl_s
from pww.lease.space import BlockSpace
from pww.lease.table import LeaseTable

__all__ = ["BlockSpace", "LeaseTable", "blocks_for_phase", "lease_ttl_s"]
