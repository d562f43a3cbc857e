"""Makes a session the active one of the thread that uses it.

Spark finds data sources that were registered from Python through the active session of the thread, not
through the session that a DataFrame is of. A thread of Python has none in the JVM, and the first session that
a program makes stays active when it works with a second one. There is no public call for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["active_session"]


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Have a session be the active one of this thread, and afterwards the one that was, or none."""
    # Spark Connect's session has no JVM here; its server looks at no thread of ours.
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        yield
        return
    session_class = spark._get_j_spark_session_class(jvm)
    before = session_class.getActiveSession()
    session_class.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            session_class.setActiveSession(before.get())
        else:
            session_class.clearActiveSession()
