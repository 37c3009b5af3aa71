"""One model copy's side of the outer loop."""
