"""How bytes travel. Import its modules by name: some need torch and some must not."""
