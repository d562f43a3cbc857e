"""The files in deploy/ pass their own tools, and name existing settings, options and metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sluice.gateway.commands.serve import command as serve
from sluice.gateway.metrics import Metrics
from sluice.gateway.settings.sources import CONFIG_ENVIRONMENT, resolve
from sluice.gateway.settings.table import SETTINGS, Settings
from sluice.publishers.commands.publish import command as publish

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "sluice"
RENDERED = DEPLOY / "kubernetes" / "sluice.yaml"
EVERYTHING = (
    *("tls.issuer.name=nodes", "serviceMonitor.enabled=true", "alerts.enabled=true", "size=large"),
    *("dashboard.enabled=true", "publisher.enabled=true", "nodes=5", "storage.className=fast"),
    *("networkPolicy.egress[0].ports[0].port=443", "minStandbys=2"),
    *(r"settings.tcp\.max_connections=500", "env[0].name=AWS_REGION", "env[0].value=x"),
    *("antiAffinity=preferred", "image.tag=1"),
)
"""Values of the chart that are off or unset by default."""
DEFAULTS = Settings()
PORTS = {
    *(DEFAULTS.grpc_address.port, DEFAULTS.control_address.port),
    *(DEFAULTS.tcp_address.port, DEFAULTS.http_address.port),
}


def expect_success(name: str, *args: str) -> str:
    """Run a tool that is no Python package, and return its output; skip where it is not installed."""
    tool = shutil.which(name)
    if tool is None:
        pytest.skip(f"needs {name} in PATH; its own package has it")
    done = subprocess.run([tool, *args], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def expect_helm(verb: str, *args: str, status: int = 0) -> str:
    """Run Helm on the chart, and return its output; that of an error where one is expected."""
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("needs helm in PATH (go install helm.sh/helm/v3/cmd/helm@latest)")
    # A Helm that `go install` made takes Kubernetes for an old one.
    command = [helm, verb, *args, str(CHART), "--kube-version", "1.33"]
    if verb == "template" and not args[0].startswith("-"):
        command = [helm, verb, args[0], str(CHART), *args[1:], "--kube-version", "1.33"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document]


# --- each by its own tool -----------------------------------------------------------------------------------


def expect_kubernetes(manifests: list[dict[str, Any]]) -> None:
    """Expect each to fit the schema of its kind, where Kubernetes itself has that."""
    for manifest in manifests:
        if manifest["apiVersion"].split("/")[0].endswith((".coreos.com", "cert-manager.io")):
            continue
        try:
            kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
        except kubernetes_validate.ValidationError as error:
            pytest.fail(f"{manifest['kind']} {manifest['metadata']['name']}: {error}")


def the_one(kind: str, manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the only manifest of a kind."""
    (found,) = (one for one in manifests if one["kind"] == kind)
    return found


def test_the_rendered_manifests_fit_their_schemas() -> None:
    manifests = documents(RENDERED)
    assert len(manifests) >= 6
    expect_kubernetes(manifests)


def test_the_rendered_manifests_are_those_of_the_chart() -> None:
    assert RENDERED.read_text("utf-8") == expect_helm("template", "sluice", "--namespace", "sluice")


def test_the_chart_renders_with_every_value(tmp_path: Path) -> None:
    words = [word for value in EVERYTHING for word in ("--set", value)]
    expect_helm("lint", "--strict", *words)
    manifests = tmp_path / "all.yaml"
    manifests.write_text(expect_helm("template", "net", *words))
    found = documents(manifests)
    expect_kubernetes(found)
    names = the_one("Certificate", found)["spec"]["dnsNames"]
    assert names == [f"net-{node}.net-nodes" for node in range(5)]
    assert [the_one("PrometheusRule", found)["spec"]] == documents(DEPLOY / "prometheus" / "alerts.yml")
    labels = the_one("ServiceMonitor", found)["spec"]["selector"]["matchLabels"]
    services = [one for one in found if one["kind"] == "Service"]
    assert [
        one["metadata"]["name"] for one in services if labels.items() <= one["metadata"]["labels"].items()
    ] == ["net-http"]
    (container,) = the_one("StatefulSet", found)["spec"]["template"]["spec"]["containers"]
    assert container["env"][1:] == [{"name": "AWS_REGION", "value": "x"}]
    assert container["resources"]["limits"]["memory"] == "8Gi"
    expect_publisher(the_one("Job", found)["spec"]["template"]["spec"], image=container["image"])
    configs = {one["metadata"]["name"]: one["data"] for one in found if one["kind"] == "ConfigMap"}
    assert json.loads(configs["net-dashboard"]["sluice.json"])["title"] == "Sluice"
    for number in range(5):
        file = tmp_path / "sluice.toml"
        file.write_text(configs["net"][f"net-{number}.toml"])
        settings = resolve({}, {}, file).settings
        assert settings.role == ("standby" if number else "active")
        assert (len(settings.peers), settings.commit_min_standbys) == (5, 2)
        assert settings.tcp_max_connections == 500


def expect_publisher(spec: dict[str, Any], image: str) -> None:
    """Expect a pod that runs in the nodes' image, and changes nothing in somebody else's volume."""
    (container,) = spec["containers"]
    assert container["image"] == image == "sluice:1"
    assert "fsGroup" not in spec["securityContext"]
    (claim,) = (one["persistentVolumeClaim"] for one in spec["volumes"] if "persistentVolumeClaim" in one)
    assert claim == {"claimName": "blocks", "readOnly": True}


@pytest.mark.parametrize("size", ["small", "medium", "large"])
@pytest.mark.parametrize(
    "switch",
    [
        *("tls.issuer.name=nodes", "serviceMonitor.enabled=true", "alerts.enabled=true"),
        *("dashboard.enabled=true", "publisher.enabled=true", "networkPolicy.enabled=false"),
        *("antiAffinity=preferred", "nodes=5", "image.tag=1", "global.x=1"),
    ],
)
def test_the_chart_renders_with_every_size_and_switch(size: str, switch: str, tmp_path: Path) -> None:
    manifests = tmp_path / "all.yaml"
    manifests.write_text(expect_helm("template", "net", "--set", f"size={size}", "--set", switch))
    expect_kubernetes(documents(manifests))


def test_one_node_waits_for_no_standby(tmp_path: Path) -> None:
    manifests, file = tmp_path / "all.yaml", tmp_path / "sluice.toml"
    manifests.write_text(expect_helm("template", "net", "--set", "nodes=1", "--set", "minStandbys=0"))
    file.write_text(the_one("ConfigMap", documents(manifests))["data"]["net-0.toml"])
    settings = resolve({}, {}, file).settings
    assert (settings.role, settings.commit_min_standbys, len(settings.peers)) == ("active", 0, 1)


def test_an_upgrade_never_changes_the_template_of_a_job() -> None:
    """Kubernetes would refuse it: with other pods, a job has another name."""

    def job(release: str, *values: str) -> tuple[str, dict[str, Any]]:
        words = [word for value in ("publisher.enabled=true", *values) for word in ("--set", value)]
        found = the_one("Job", list(yaml.safe_load_all(expect_helm("template", release, *words))))
        return found["metadata"]["name"], found["spec"]["template"]

    first, later = job("sluice"), job("sluice", "image.tag=later")
    assert first[1] != later[1]
    assert first[0] != later[0]
    assert job("sluice", "storage.size=1Gi") == first
    assert len(job("a" * 53)[0]) <= 63  # the longest name of a release; the name of a job is a label, too


def test_nodes_have_machines_of_their_own() -> None:
    def rules(manifests: list[dict[str, Any]]) -> dict[str, Any]:
        template = the_one("StatefulSet", manifests)["spec"]["template"]
        found: dict[str, Any] = template["spec"]["affinity"]["podAntiAffinity"]
        labels = template["metadata"]["labels"]
        for (rule,) in found.values():
            term = rule.get("podAffinityTerm", rule)
            assert term["topologyKey"] == "kubernetes.io/hostname"
            assert term["labelSelector"]["matchLabels"].items() <= labels.items()
        return found

    assert list(rules(documents(RENDERED))) == ["requiredDuringSchedulingIgnoredDuringExecution"]
    softer = list(yaml.safe_load_all(expect_helm("template", "sluice", "--set", "antiAffinity=preferred")))
    assert list(rules(softer)) == ["preferredDuringSchedulingIgnoredDuringExecution"]


def test_a_start_does_not_walk_through_all_data() -> None:
    security = the_one("StatefulSet", documents(RENDERED))["spec"]["template"]["spec"]["securityContext"]
    assert security["fsGroup"] == security["runAsGroup"]
    assert security["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("size=huge", 'size: got "huge", expected one of large, medium, small'),
        ("minStandbys=3", "minStandbys: got 3, expected less than nodes, which is 3"),
        (
            r"settings.failover\.etcd=e:2379",
            "networkPolicy.egress: got nothing, expected a rule that leads to failover",
        ),
        (
            r"settings.otel\.endpoint=http://c:4317",
            "expected a rule that leads to otel.endpoint, http://c:4317",
        ),
        (r"settings.archive\.url=s3://b/p", "expected a rule that leads to archive.url, s3://b/p"),
        ("nodes=1", "minStandbys: got 1, expected less than nodes, which is 1"),
        ("settings.role=active", "settings: got role, which is not for you"),
        (r"settings.http\.address=0.0.0.0:80", "settings: got http.address, which is not for you"),
        # by values.schema.json
        ("antiAffinity=none", "'/antiAffinity': value must be one of 'required', 'preferred'"),
        ("minStandbys=-1", "'/minStandbys': minimum: got -1, want 0"),
        ("minStandbys=one", "'/minStandbys': got string, want integer"),
        ("nodes=0", "'/nodes': minimum: got 0, want 1"),
        ("replicas=1", "additional properties 'replicas' not allowed"),
        ("tls.secretname=own", "'/tls': additional properties 'secretname' not allowed"),
        ("tls.secretName=", "'/tls/secretName': minLength: got 0, want 1"),
        (
            "settings.tcp.max_connections=500",
            "'/settings/tcp': got object, want",
        ),  # its dot needs a backslash
        ("ledgerKeys=ed25519:HEX", "'/ledgerKeys': got string, want array"),
        ("env.AWS_REGION=x", "'/env': got object, want array"),
        ("storage.size=100", "'/storage/size': got number, want string"),
        ("sizes.small.memory=2GB", "'/sizes/small/memory': '2GB' does not match pattern"),
        ("networkPolicy.enabled=nope", "'/networkPolicy/enabled': got string, want boolean"),
        ("alerts=true", "'/alerts': got boolean, want object"),
    ],
)
def test_the_chart_refuses_what_cannot_work(value: str, words: str) -> None:
    assert words in expect_helm("template", "sluice", "--set", value, status=1)


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
        name for name, service in compose["services"].items() if service.get("command", [""])[0] == "serve"
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
    helpers = (CHART / "templates" / "_helpers.tpl").read_text("utf-8")
    assert f"\nrunAsUser: {user[1]}\n" in helpers


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "sluice.service").read_text("utf-8")
    (page,) = re.findall(r"(?m)^Documentation=file:(\S+)$", text)
    assert f"install -D -m 644 docs/operations.md {page}\n" in text
    # The command is not installed here; everything else is as it stands.
    unit = tmp_path / "sluice.service"
    unit.write_text(text.replace("/opt/sluice/bin/sluice", "/bin/sh"))
    unit.chmod(0o644)  # whatever the umask: one that all may write is warned of
    more = tmp_path / "sluice.service.d" / "cluster.conf"
    more.parent.mkdir()
    shutil.copy(DEPLOY / "systemd" / "cluster.conf", more)
    assert expect_success("systemd-analyze", "verify", str(unit)).strip() == ""
    if int(expect_success("systemd-analyze", "--version").split()[1]) < 250:
        pytest.skip("needs systemd 250 or later, which judges a unit that is not installed")
    score = expect_success("systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit))
    assert "Overall exposure level" in score


def test_haproxy_takes_its_configuration() -> None:
    expect_success("haproxy", "-c", "-f", str(DEPLOY / "haproxy" / "haproxy.cfg"))


def test_prometheus_takes_its_configuration() -> None:
    expect_success("promtool", "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))


def test_alerts_of_a_cluster_fire_for_it_and_another_cluster_hides_none() -> None:
    expect_success("promtool", "test", "rules", str(Path(__file__).with_name("alerts_test.yml")))


def test_prometheus_takes_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "sluice.json").read_text("utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(queries)} rules found" in expect_success("promtool", "check", "rules", str(path))


def test_the_constraints_are_within_the_bounds_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(line for name in ("spark", "archive", "otel", "dev") for line in extras[name]),
    ]
    lines = (DEPLOY / "constraints.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    assert all(str(pin.specifier).startswith("==") for pin in pins)
    for requirement in map(Requirement, wanted):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, requirement
        assert requirement.specifier.contains(version), (requirement, version)


def test_set_up_and_image_install_these_versions() -> None:
    installs = re.findall(
        r"(?m)^.*pip install .*'\.\[.*$", (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    )
    installs = [line for line in installs if "constraints/bin" not in line]
    installs += re.findall(r"(?m)pip install .*$", (DEPLOY / "Containerfile").read_text("utf-8"))
    assert len(installs) == 3
    assert all(" --constraint deploy/constraints.txt " in line for line in installs)


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
        assert used <= names | {CONFIG_ENVIRONMENT}


def containers() -> Iterator[tuple[str, list[str]]]:
    """Yield where, and the words after `sluice`, of every container."""
    (compose,) = documents(DEPLOY / "compose.yaml")
    for name, service in compose["services"].items():
        if service.get("image") == "sluice" and name != "chain":
            yield f"compose {name}", service["command"]
    for document in documents(RENDERED):
        spec = document.get("spec", {}).get("template", {}).get("spec", {})
        for container in spec.get("containers", []):
            yield f"kubernetes {document['metadata']['name']}", container["args"]
    template = (CHART / "templates" / "publisher.yaml").read_text("utf-8")
    yield "helm publisher", ["publish", *re.findall(r"(?m)^ +- (--[\w-]+)=", template)]


@pytest.mark.parametrize(("where", "words"), [pytest.param(*one, id=one[0]) for one in containers()])
def test_commands_of_containers_have_the_options_that_they_use(where: str, words: list[str]) -> None:
    commands: dict[str, click.Command] = {"serve": serve, "publish": publish}
    command = commands[words[0]]
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert used, where
    assert used <= known, where


def memory_bytes(text: str) -> int:
    """Return an amount of memory as compose, Kubernetes and systemd write it."""
    found = re.fullmatch(r"(\d+)([GgM])i?", text)
    assert found is not None, text
    return int(found[1]) << {"G": 30, "g": 30, "M": 20}[found[2]]


def memory_limits() -> Iterator[tuple[str, str, str]]:
    """Yield where, the memory that a node may take there, and the lines of its settings."""
    (compose,) = documents(DEPLOY / "compose.yaml")
    (script,) = compose["services"]["chain"]["command"]
    yield "compose", compose["x-node"]["mem_limit"], script
    unit = (DEPLOY / "systemd" / "sluice.service").read_text("utf-8")
    (memory,) = re.findall(r"(?m)^MemoryMax=(\w+)$", unit)
    yield "systemd", memory, (DEPLOY / "systemd" / "sluice.toml").read_text("utf-8")
    (values,) = documents(CHART / "values.yaml")
    for name, size in values["sizes"].items():
        yield name, size["memory"], "\n".join(f'{one} = "{value}"' for one, value in size["settings"].items())


@pytest.mark.parametrize(
    ("where", "memory", "lines"), [pytest.param(*one, id=one[0]) for one in memory_limits()]
)
def test_a_node_stays_within_its_memory(where: str, memory: str, lines: str, tmp_path: Path) -> None:
    """A node takes some 80 MiB, its three processes 40 MiB each, and long items take twice their bytes."""
    file = tmp_path / "sluice.toml"
    file.write_text("\n".join(re.findall(r"(?m)^(?:publish|grpc)\.max_\w+ = .*$", lines)))
    settings = resolve({}, {}, file).settings
    taken_bytes = settings.publish_max_inflight_bytes + settings.grpc_max_receiving_bytes
    assert memory_bytes(memory) >= (200 << 20) + 2 * taken_bytes


def test_acknowledgements_wait_for_the_same_number_of_standbys_everywhere() -> None:
    (compose,) = documents(DEPLOY / "compose.yaml")
    (values,) = documents(CHART / "values.yaml")
    texts = (compose["services"]["chain"]["command"][0], (DEPLOY / "systemd" / "sluice.toml").read_text())
    found = [re.findall(r"(?m)^commit\.min_standbys = (\d+)$", text) for text in texts]
    assert found == [["1"], ["1"]]
    assert values["minStandbys"] == 1


def test_no_port_of_a_node_is_given_to_a_connection() -> None:
    """Linux gives ports from 32768 on to connections, unless it is told which are reserved."""
    ports = {DEFAULTS.grpc_address.port, DEFAULTS.control_address.port}
    assert all(port < 32768 for port in PORTS - ports)
    name, value = "net.ipv4.ip_local_reserved_ports", f"{min(ports)}-{max(ports)}"
    assert f"echo {name}={value} >/etc/sysctl.d" in (DEPLOY / "systemd" / "sluice.service").read_text("utf-8")
    (compose,) = documents(DEPLOY / "compose.yaml")
    assert compose["x-node"]["sysctls"] == {name: value}
    spec = the_one("StatefulSet", documents(RENDERED))["spec"]["template"]["spec"]
    assert spec["securityContext"]["sysctls"] == [{"name": name, "value": value}]


def test_ports_are_the_defaults() -> None:
    exposed = re.findall(r"^EXPOSE (.*)$", (DEPLOY / "Containerfile").read_text("utf-8"), re.MULTILINE)
    assert {int(port) for port in exposed[0].split()} == PORTS
    (container,) = the_one("StatefulSet", documents(RENDERED))["spec"]["template"]["spec"]["containers"]
    assert {port["containerPort"] for port in container["ports"]} == PORTS
    services = [one for one in documents(RENDERED) if one["kind"] == "Service"]
    assert {port["port"] for service in services for port in service["spec"]["ports"]} == PORTS


def test_nodes_are_given_more_time_to_stop_than_they_take() -> None:
    grace_seconds = DEFAULTS.shutdown_grace_seconds
    (compose,) = documents(DEPLOY / "compose.yaml")
    stateful = the_one("StatefulSet", documents(RENDERED))
    unit = (DEPLOY / "systemd" / "sluice.service").read_text("utf-8")
    stop_seconds = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert stop_seconds is not None
    for given_seconds in (
        int(compose["x-node"]["stop_grace_period"].removesuffix("s")),
        stateful["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
        int(stop_seconds[1]),
    ):
        assert given_seconds >= 2 * grace_seconds
