"""From documents to a deterministic stream of token batches."""
