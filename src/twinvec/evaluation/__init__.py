"""Metrics, evaluation of files, charts and reports."""
