"""Flower, in the only package that touches its non-public modules (flwr 1.42)."""

# First of all: it silences telemetry, which flwr decides on while it is imported.
from pww.federation import quiet as quiet
