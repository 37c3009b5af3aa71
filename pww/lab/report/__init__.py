"""Tables, figures and verdicts, from recorded runs alone."""
