"""From a checked configuration to running ranks: the run's folder, processes, batch script."""
