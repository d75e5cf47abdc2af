# Generated from ../_async/stages.py by `make generate`: change that file.
"""Stages: messages that a task uploads, invisible until they are committed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from miniq.api.shapes import StageId
from miniq.api.tables import is_table
from miniq.batch import StageName
from miniq.client import bodies
from miniq.client.arguments import as_list
from miniq.errors import InvalidRequest

if TYPE_CHECKING:
    from miniq.client._sync.queue import Queue
    from miniq.client._sync.topic import Topic


class Staging:
    """The messages of one attempt of one task, uploaded in any number of parts."""

    def __init__(self, to: Queue | Topic, name: StageName) -> None:
        self.to = to
        self.name = name
        self.parts = 0
        """How many parts were uploaded through this object."""

    def upload(self, messages: Any, part: int | None = None) -> int:
        """Upload messages (drafts, bodies or a `pyarrow.Table`) as the next part, or as `part`; returns their number. A
        part that exists stays as it is, so that an upload can be repeated."""
        drafts = messages if is_table(messages) else bodies.drafts(messages)
        number = self.parts if part is None else part
        count, _ = self.to._upload(self.name, number, drafts)
        self.parts = max(self.parts, number + 1)
        return count


def stage_ids(stages: Iterable[tuple[int | str, int | str]]) -> list[StageId]:
    """The stages that a commit lists, as (partition, attempt)."""
    ids = []
    for stage in as_list(stages, "stages", "(partition, attempt)"):
        if not isinstance(stage, tuple | list) or len(stage) != 2:
            raise InvalidRequest(f"stages: {stage!r:.80} is not (partition, attempt)", field="stages")
        ids.append(StageId(str(stage[0]), str(stage[1])))
    return ids
