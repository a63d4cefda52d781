"""What a backbone was trained with elsewhere: plain next-token loss at full depth. It is imported, never trained here.

What goes on from it without an objective of its own minimises the same.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from components.config.schema import Model, ObjectiveSettings
from components.objectives import twin


class Settings(ObjectiveSettings):
    """Not written in the file as such: the loader makes it of an entry of `backbones`."""

    from_scratch: ClassVar[bool] = False
    trains: ClassVar[bool] = False
    kind: Literal["pretrained"]
    path: str

    def trained_depths(self, model: Model) -> tuple[int, ...]:
        return (model.n_blocks,)


class Objective(twin.Objective):
    """The loss of a stand-alone model."""
