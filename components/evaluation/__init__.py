"""Quality per depth, and the metrics of the whole curve."""
