"""The files in deploy/ pass their own tools, and name existing settings, options and metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import kubernetes_validate
import pytest
import yaml

from sluice.gateway.commands.serve import command as serve
from sluice.gateway.metrics import Metrics
from sluice.gateway.settings.sources import resolve
from sluice.gateway.settings.table import SETTINGS, Settings
from sluice.publishers.commands.publish import command as publish

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted(path for path in (DEPLOY / "kubernetes").glob("*.yaml") if path.stem != "kustomization")
DEFAULTS = Settings()
PORTS = {DEFAULTS.grpc_address.port, DEFAULTS.tcp_address.port, DEFAULTS.http_address.port}


def expect_success(name: str, *args: str) -> str:
    """Run a tool that is no Python package, and return its output; skip where it is not installed."""
    tool = shutil.which(name)
    if tool is None:
        pytest.skip(f"needs {name} in PATH; its own package has it")
    done = subprocess.run([tool, *args], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document]


# --- each by its own tool -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_fit_their_schemas(path: Path) -> None:
    for document in documents(path):
        try:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        except kubernetes_validate.ValidationError as error:
            pytest.fail(f"{path.name}: {error}")


def test_the_kustomization_names_every_manifest() -> None:
    (kustomization,) = documents(DEPLOY / "kubernetes" / "kustomization.yaml")
    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS]


@pytest.mark.parametrize("name", ["compose.yaml", "compose-archive.yaml"])
def test_the_compose_files_fit_their_schema(name: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run(
        [*command, str(DEPLOY / name)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_archive_s_compose_file_gives_settings_to_every_node() -> None:
    (compose,) = documents(DEPLOY / "compose.yaml")
    (overlay,) = documents(DEPLOY / "compose-archive.yaml")
    nodes = {
        name for name, service in compose["services"].items() if "sluice" in service.get("entrypoint", ())
    }
    store, given = overlay["services"]["store"], overlay["x-node"]["environment"]
    assert {name for name in overlay["services"] if name != "store"} == nodes
    found = resolve({}, given)
    assert not found.unknown_environment
    settings = found.settings
    url = urlsplit(settings.archive_endpoint or "")
    assert f"127.0.0.1:{url.port}:{url.port}" in store["ports"]
    assert f"--port :{url.port} " in store["entrypoint"][-1]
    assert f"mkdir -p /store/{urlsplit(settings.archive_url or '').netloc}\n" in store["entrypoint"][-1]
    assert store["environment"].items() <= given.items()


def test_the_containerfile_has_no_finding() -> None:
    expect_success("hadolint", str(DEPLOY / "Containerfile"))


def test_the_user_whom_spark_runs_as_has_a_name() -> None:
    """Without a name in /etc/passwd, Java finds no home, and Spark does not start."""
    text = (DEPLOY / "Containerfile").read_text("utf-8")
    (stage,) = (part for part in text.split("\nFROM ") if " AS publisher\n" in part)
    user = re.search(r"^USER (\d+):\d+$", stage, re.MULTILINE)
    assert user is not None
    assert f"useradd --uid {user[1]} " in stage
    (job,) = documents(DEPLOY / "kubernetes" / "publisher.yaml")
    assert job["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == int(user[1])


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "sluice.service").read_text("utf-8")
    (page,) = re.findall(r"(?m)^Documentation=file:(\S+)$", text)
    assert f"install -D -m 644 docs/operations.md {page}\n" in text
    # The command is not installed here; everything else is as it stands.
    unit = tmp_path / "sluice.service"
    unit.write_text(text.replace("/opt/sluice/bin/sluice", "/bin/sh"))
    unit.chmod(0o644)  # whatever the umask: one that all may write is warned of
    assert expect_success("systemd-analyze", "verify", str(unit)).strip() == ""
    if int(expect_success("systemd-analyze", "--version").split()[1]) < 250:
        pytest.skip("needs systemd 250 or later, which judges a unit that is not installed")
    score = expect_success("systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit))
    assert "Overall exposure level" in score


def test_haproxy_takes_its_configuration() -> None:
    expect_success("haproxy", "-c", "-f", str(DEPLOY / "haproxy" / "haproxy.cfg"))


def test_prometheus_takes_its_configuration() -> None:
    expect_success("promtool", "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))


# --- against what they name ---------------------------------------------------------------------------------


def metric_names() -> set[str]:
    """Every series that a node has."""
    text = Metrics(verification_mode="full").exposition().decode()
    names = set(re.findall(r"^# TYPE (\S+) (?:gauge|counter)", text, re.MULTILINE))
    for histogram in re.findall(r"^# TYPE (\S+) histogram", text, re.MULTILINE):
        names |= {f"{histogram}_{suffix}" for suffix in ("bucket", "count", "sum")}
    return names


def test_dashboards_and_alerts_ask_for_metrics_that_there_are() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "sluice.json").read_text("utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    (alerts,) = documents(DEPLOY / "prometheus" / "alerts.yml")
    expressions += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    asked = {name for expression in expressions for name in re.findall(r"\bsluice_\w+", expression)}
    assert len(asked) >= 10
    assert asked <= metric_names()


def test_panels_do_not_overlap() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "sluice.json").read_text("utf-8"))
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        for cell in (
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        ):
            assert cell[0] < 24
            assert cell not in taken, f"{panel['title']} and {taken.get(cell)}"
            taken[cell] = panel["title"]


def test_every_alert_has_its_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    anchors = {
        re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    }
    (alerts,) = documents(DEPLOY / "prometheus" / "alerts.yml")
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    for rule in rules:
        file, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (file, anchor in anchors) == ("docs/operations.md", True), rule["alert"]


def test_variables_of_the_image_and_the_unit_are_settings() -> None:
    names = {setting.environment for setting in SETTINGS}
    for path in (DEPLOY / "Containerfile", DEPLOY / "systemd" / "sluice.service"):
        used = set(re.findall(r"\b(SLUICE_\w+)=", path.read_text("utf-8")))
        assert used, path
        assert used <= names


def containers() -> Iterator[tuple[str, list[str]]]:
    """Yield where, and the words after `sluice`, of every container."""
    (compose,) = documents(DEPLOY / "compose.yaml")
    for name, service in compose["services"].items():
        if service.get("image") == "sluice" and name != "chain":
            yield f"compose {name}", ["serve", *service["command"]]
        elif service.get("image") == "sluice-publisher":
            yield f"compose {name}", service["command"]
    for path in MANIFESTS:
        for document in documents(path):
            spec = document.get("spec", {}).get("template", {}).get("spec", {})
            for container in spec.get("containers", []):
                yield f"kubernetes {path.stem}", container["args"]


@pytest.mark.parametrize(("where", "words"), [pytest.param(*one, id=one[0]) for one in containers()])
def test_commands_of_containers_have_the_options_that_they_use(where: str, words: list[str]) -> None:
    commands: dict[str, click.Command] = {"serve": serve, "publish": publish}
    command = commands[words[0]]
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert used, where
    assert used <= known, where


def test_the_settings_of_the_cluster_are_settings(tmp_path: Path) -> None:
    (config,) = documents(DEPLOY / "kubernetes" / "config.yaml")
    file = tmp_path / "sluice.toml"
    file.write_text(config["data"]["sluice.toml"].replace("# ledger_keys", "ledger_keys"))
    settings = resolve({}, {}, file).settings
    assert len(settings.peers) == 2


def test_ports_are_the_defaults() -> None:
    exposed = re.findall(r"^EXPOSE (.*)$", (DEPLOY / "Containerfile").read_text("utf-8"), re.MULTILINE)
    assert {int(port) for port in exposed[0].split()} == PORTS
    (stateful,) = documents(DEPLOY / "kubernetes" / "statefulset.yaml")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    assert {port["containerPort"] for port in container["ports"]} == PORTS
    services = documents(DEPLOY / "kubernetes" / "services.yaml")
    assert {port["port"] for service in services for port in service["spec"]["ports"]} == PORTS


def test_nodes_are_given_more_time_to_stop_than_they_take() -> None:
    grace_seconds = DEFAULTS.shutdown_grace_seconds
    (compose,) = documents(DEPLOY / "compose.yaml")
    (stateful,) = documents(DEPLOY / "kubernetes" / "statefulset.yaml")
    unit = (DEPLOY / "systemd" / "sluice.service").read_text("utf-8")
    stop_seconds = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert stop_seconds is not None
    for given_seconds in (
        int(compose["x-node"]["stop_grace_period"].removesuffix("s")),
        stateful["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
        int(stop_seconds[1]),
    ):
        assert given_seconds >= 2 * grace_seconds
