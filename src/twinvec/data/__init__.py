"""Reading files into named columns, labels and splits."""
