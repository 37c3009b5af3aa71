"""A real central and real clients whose work is a sleep: `python -m pww.simulate`."""
