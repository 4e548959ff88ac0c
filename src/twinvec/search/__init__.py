"""`Searcher`: a query in, hits out."""
