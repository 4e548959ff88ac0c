"""`Recipe` and the training loop."""
