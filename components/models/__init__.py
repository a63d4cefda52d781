"""The cascade, its parts, sizes and files."""
