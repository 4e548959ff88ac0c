"""From texts to vectors: backbone, pooling, heads, folder format, `Encoder`."""
