"""The lab: low-communication training studied on one machine."""
