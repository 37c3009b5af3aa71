"""`python -m pww.smoke`: does this machine train as it should? Seconds, before any long job."""
