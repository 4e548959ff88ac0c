"""The report of `twinvec compare`: one HTML file with drawings of its own."""
