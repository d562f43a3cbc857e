"""Which session is a thread's active one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from publishers.spark import register
from publishers.spark.active_session import active_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def is_active(spark: SparkSession) -> bool:
    assert spark._jvm is not None
    found = spark._get_j_spark_session_class(spark._jvm).getActiveSession()
    return bool(found.isDefined() and found.get().equals(spark._jsparkSession))


def test_afterwards_it_is_the_one_that_was(spark: SparkSession) -> None:
    second = spark.newSession()
    with active_session(spark):
        with suppress(KeyError), active_session(second):
            assert is_active(second)
            raise KeyError
        assert is_active(spark)


def test_a_thread_has_none_before_and_after(spark: SparkSession) -> None:
    def look() -> list[bool]:
        seen = [is_active(spark)]
        with active_session(spark):
            seen.append(is_active(spark))
        return [*seen, is_active(spark)]

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(look).result() == [False, True, False]


def test_a_second_session_gets_the_sources_again_and_again(spark: SparkSession) -> None:
    second = spark.newSession()
    with active_session(spark):
        register(second)
        register(second)
        register(spark)
    with active_session(second):
        assert second.read.format("blockfiles").load("/nowhere").columns == ["block_number", "items"]


def test_a_session_over_connect_has_none() -> None:
    class Connected:
        pass

    with active_session(Connected()):  # type: ignore[arg-type]
        pass
