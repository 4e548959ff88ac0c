"""Losses: tensors in, scalar out; they never see a model."""
