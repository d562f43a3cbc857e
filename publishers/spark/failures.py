"""The line that matters in Spark's report of a failure, and remedies for the usual failures.

Pure. The line that matters is, in this order: an error of Sluice's; a known failure, with its remedy; what
Python raised, perhaps in the user's function; the first line with words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["is_passing", "known_failure", "reason_in"]

_OUR_ERROR: Final = re.compile(r"^sluice\.[\w.]*\.errors\.\w+: (?P<reason>.*)$", re.MULTILINE)
_RAISED: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?P<error>\S.*)")
# Failures that have nothing to do with the job.
_PASSING: Final = (
    # Queries of one data source share a Java map. Sluice's own sources have a concurrent one (`register`);
    # others may not.
    "OptionalDataException",
    "ConcurrentModificationException",
    # Spark (4.3, PythonWorkerFactory.createSimpleWorker) gives a streaming source's Python 10 seconds to
    # start, and has no setting for it.
    "Python worker failed to connect back",
)
_STATUS_MARK: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")
_REINSTALL: Final = (
    "give the workers an interpreter of their own that has sluice-gateway[spark] and nothing else"
)


@dataclass(frozen=True, slots=True)
class _Known:
    """A usual failure of Spark."""

    pattern: re.Pattern[str]
    explanation: str
    """It has the pattern's groups, and {line}, the first line that matches."""


def _known(pattern: str, explanation: str) -> _Known:
    return _Known(re.compile(pattern), explanation)


_KNOWN: Final = (
    _known(
        r"PYTHON_VERSION_MISMATCH\].*?different version: (?P<worker>[\d.]+)"
        r" than that in (?:the )?driver:? (?P<driver>[\d.]+)",
        "the workers run Python {worker}, the driver Python {driver}; set PYSPARK_PYTHON to an interpreter "
        "of version {driver} that has sluice-gateway[spark]",
    ),
    _known(
        r'Cannot run program "(?P<program>[^"]*)".*?(?P<why>error=\d+, [^\n]*|Exec failed[^\n]*)',
        "the workers' interpreter {program} does not start ({why}); set PYSPARK_PYTHON to the Python that "
        "has sluice-gateway[spark]",
    ),
    _known(
        r"ModuleNotFoundError: No module named 'sluice[\w.]*'; '[\w.]+' is not a package",
        "on a worker another module called 'sluice' hides Sluice; remove it from PYTHONPATH, "
        "from --py-files and from the working directory of the workers",
    ),
    _known(
        r"ModuleNotFoundError: No module named '(?P<module>sluice[\w.]*)'",
        "a worker cannot import '{module}': sluice-gateway is not installed for its interpreter, or another "
        "package of that name hides it; install it on every worker, or point PYSPARK_PYTHON to one "
        "that has it",
    ),
    _known(
        r"ModuleNotFoundError: No module named '(?P<module>grpc|google|pyarrow|pandas|plyvel)[\w.]*'",
        "a worker cannot import '{module}'; pip install 'sluice-gateway[spark]' for its interpreter",
    ),
    _known(
        r"VersionError: (?P<text>Detected [^\n]*)",
        "the protobuf that is imported does not fit what Sluice was generated with ({text}); " + _REINSTALL,
    ),
    _known(
        r"cannot import name '\w+' from '(?:sluice|proto|google)[\w.]*' \([^)]*\)",
        "another module is imported in the place of one of Sluice's or protobuf's ({line}); " + _REINSTALL,
    ),
    _known(
        r"Couldn't build proto file into descriptor pool|duplicate (?:file name|symbol)",
        "two sets of protobuf classes with the same names are loaded ({line}); " + _REINSTALL,
    ),
    _known(
        r"Address already in use[^\n]*?Service '(?P<service>\w+)'",
        "a port that Spark was told to use is in use (by its service {service}); give another, or none, so "
        "that Spark takes any",
    ),
    _known(
        r"Address already in use",
        "a port that Spark was told to use is in use; give another one, or none, so that Spark takes any",
    ),
    _known(
        r"Failed to create (?:any |a )?(?:local|temp) dir[^\n]*",
        "Spark cannot write to its local folder ({line}); set SPARK_LOCAL_DIRS to one that it can write to",
    ),
    _known(
        r"No space left on device",
        "no space is left for Spark's temporary files; set SPARK_LOCAL_DIRS to a disk that has some",
    ),
    _known(
        r"basedir must be absolute: \?|invalid null input: name",
        "the user id that it runs under has no name in /etc/passwd, which Spark needs; run it as a user who "
        "has one",
    ),
    _known(
        r"UnsupportedClassVersionError",
        "Java is too old for this Spark; install Java 17 or later, or set JAVA_HOME to one",
    ),
    _known(
        r"All masters are unresponsive",
        "the Spark master does not answer; is it running, and is the address after --master right?",
    ),
    _known(
        r"OutOfMemoryError: (?P<text>[^\n]*)",
        "Spark ran out of memory ({text}); give it more: --conf spark.driver.memory=4g in local mode, else "
        "spark.executor.memory",
    ),
    _known(
        r"(?:UNSUPPORTED_PACKAGE_VERSION|PACKAGE_NOT_INSTALLED)\] (?P<text>[^\n]*)",
        "{text} pip install 'sluice-gateway[spark]' brings those that fit",
    ),
    _known(
        r"Python worker failed to connect back",
        "a Python worker did not start within the 10 seconds that Spark gives it; the machine had no time "
        "for it: run it again, with fewer task slots",
    ),
    _known(
        r"ExecutorLostFailure \(executor \S+ exited caused by[^)]*\) Reason: (?P<why>[^\n]*)",
        "each executor that ran one of its tasks died, as often as spark.task.maxFailures allows (the last "
        "one: {why}); if their machine has ended them for their memory (137), give them more "
        "(spark.executor.memoryOverhead) or let them hold less (cache_bytes)",
    ),
    _known(
        r"'JavaPackage' object is not callable",
        "PySpark and the Spark in SPARK_HOME are of different versions; unset SPARK_HOME",
    ),
)


def known_failure(text: str) -> str | None:
    """Return the explanation of a failure that Spark, Java or a worker wrote."""
    for known in _KNOWN:
        match = known.pattern.search(text)
        if match is not None:
            fields = {name: value or "" for name, value in match.groupdict().items()}
            fields["line"] = text[match.start() :].split("\n", 1)[0].strip()
            return known.explanation.format(**fields)
    return None


def is_passing(text: str) -> bool:
    """Return whether a streaming query that failed so may be started again, from its checkpoint."""
    return any(mark in text for mark in _PASSING)


def reason_in(text: str) -> str:
    """Return the line that matters in the text of a Spark exception."""
    ours = [match["reason"] for match in _OUR_ERROR.finditer(text)]
    if ours:
        return _STATUS_MARK.sub("", ours[-1])
    explained = known_failure(text)
    if explained is not None:
        return explained
    raised = [match["error"] for match in _RAISED.finditer(text)]
    if raised:
        return _STATUS_MARK.sub("", raised[-1])
    lines = [line.strip(" :") for line in text.splitlines() if line.strip()]
    # py4j's first line only names the Java call.
    useful = [line for line in lines if not line.startswith("An error occurred while calling")]
    return (useful or lines or ["no reason given"])[0]
