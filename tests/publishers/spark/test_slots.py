"""How long a part waits for its turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from publishers.spark.slots import turn_seconds, turn_seconds_for


@pytest.mark.parametrize(
    ("parts", "slots", "failures", "seconds"),
    [(4, 4, 4, 600.0), (5, 4, 4, 60.0), (5, 4, 1, 600.0), (1, 1, 1, 600.0), (9, 0, 2, 60.0)],
)
def test_parts_give_way_where_slots_are_few_and_tasks_are_tried_again(
    parts: int, slots: int, failures: int, seconds: float
) -> None:
    assert turn_seconds(parts, slots, failures) == seconds


class Session:
    """As much of a session as is asked."""

    def __init__(self, master: str, slots: int, **settings: str) -> None:
        given = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
        conf = SimpleNamespace(get=given.get)
        self.sparkContext = SimpleNamespace(master=master, defaultParallelism=slots, getConf=lambda: conf)


class ConnectSession:
    """One that has no context."""

    @property
    def sparkContext(self) -> object:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("session", "seconds"),
    [
        (Session("local[2]", 2), 600.0),  # a task that fails once fails the job
        (Session("local[2,3]", 2), 60.0),
        (Session("local[4,3]", 4), 600.0),
        (Session("spark://host:7077", 2), 60.0),
        (Session("spark://host:7077", 2, task_maxFailures="1"), 600.0),
        (Session("spark://host:7077", 4), 600.0),
        (Session("spark://host:7077", 4, task_cpus="2"), 60.0),
        (Session("yarn", 2, dynamicAllocation_enabled="true"), 600.0),
        (ConnectSession(), 600.0),
    ],
)
def test_a_session_is_asked_for_its_slots(session: Any, seconds: float) -> None:
    assert turn_seconds_for(session, 4) == seconds
