"""The inner loop: `api` is the contract, `titan` the engine, `ranks` the ranks of one replica."""
