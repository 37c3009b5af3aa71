"""The central: the books (leases, ledger, rounds), the merge, and what serves them."""
