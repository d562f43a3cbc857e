"""Every example of `docs/spark-prepare.md` runs, against a real node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from sluice.gateway.blocks.items import payload_of
from sluice.gateway.key_files import create_private_key
from tests.nodes import ledger_key
from tests.publishers.node_thread import node_thread

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "spark-prepare.md").read_text(encoding="utf-8")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # the examples take the session that runs
def test_the_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    key = create_private_key(tmp_path / "network.key")
    examples = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(examples) == 4
    names: dict[str, Any] = {}
    with node_thread(tmp_path / "node", ledger_keys=(ledger_key(key),)) as node:
        for example in examples:
            exec(example.replace("127.0.0.1:40840", str(node.grpc_address)), names)
        found = [node.store.read_block(number) for number in range(5)]
        names["publish_batch"](names["later"], 0)  # the same again: nodes skip it
        assert node.store.last_number == 4
    stored = [block for block in found if block is not None]
    payloads = [payload_of(item) for block in stored for item in block.items[1:-2]]
    assert payloads == [*(b"event %d" % index for index in range(20)), b"late"]
    assert (tmp_path / "starts" / "1.json").exists()


def test_every_function_of_the_page_is_there() -> None:
    from sluice.publishers import spark

    named = re.findall(r"^\| `(\w+)\(", TEXT, re.MULTILINE)
    assert len(named) == 8
    assert {name for name in named if callable(getattr(spark, name))} == set(named)
    options = {name for name in spark.__all__ if name.endswith("Options")}
    others = set(spark.__all__) - {"ChainStart", "register"} - set(named) - options
    pages = "".join(
        (DOCS / name).read_text("utf-8") for name in ("analytics.md", "spark.md", "verification.md")
    )
    assert others == {
        *("by_publisher", "descriptor_set", "observed", "publish", "read_totals", "reports_frame"),
        "verify_blocks",
    }
    assert {name for name in others if f"{name}(" in pages} == others
    assert {name for name in options if f"`{name}`" in pages} == options
