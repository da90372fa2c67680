"""Faults of every part, tried often: `make faults`; see docs/faults.md."""
