"""What the report was made with: versions and the machine. The devices that trained stand in the cost table."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from components.models.devices import cpu_name
from components.reporting.tables import Row, Table

PACKAGES = ("torch", "numpy", "pyarrow", "tokenizers", "datasets", "dvc", "prefect", "ray", "mlflow", "matplotlib")


def environment_table() -> Table:
    """Python, packages and CPU of the process that writes the report."""
    rows: list[Row] = [
        ("Python", platform.python_version()),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("CPU", f"{cpu_name()}, {os.cpu_count()} cores"),
    ]
    for package in PACKAGES:
        try:
            rows.append((package, version(package)))
        except PackageNotFoundError:
            rows.append((package, "not installed"))
    return Table("Versions and machine", ("what", "value"), tuple(rows), "Of the process that wrote this report.", (0, 1))
