"""t."""
VOCABULARY = "\n" + "".join(chr(c) for c in range(32, 127))
