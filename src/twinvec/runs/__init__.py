"""Whole jobs that join rooms: a training run with its report, the demo."""
