"""Speed measurements, run on demand: `make bench` runs all of them short; each module runs alone with `python -m bench.<name>`."""
