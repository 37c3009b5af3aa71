"""Studies that are run again with one command, each with the figures it is compared with."""
