"""New training data out of texts and a model: hard negatives."""
