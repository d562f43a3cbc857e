"""Three nodes as each deployment of deploy/ starts them, through the procedures of docs/operations.md.

The nodes get exactly the words, variables and files of the compose file, of the rendered Kubernetes files and
of the systemd files. Only folders become folders of the test, and ports and names become free ports of this
machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice.datastream.check.compare import compare_streams
from sluice.gateway.addresses import Address
from sluice.gateway.key_files import load_private_key
from sluice.gateway.settings.table import Settings
from sluice.publishers.demo.node_process import environment_without_settings
from tests.etcd import running_etcd
from tests.interop.test_deploy import CHART, DEPLOY, RENDERED, ROOT, documents, expect_helm
from tests.interop.test_operations import (
    BACK_UP,
    CHECK_BACKUP,
    FAIL_OVER,
    RESTORE,
    STATUS,
    Publishing,
    ask,
    has_block,
)
from tests.nodes import KEY, ledger_key, until
from tests.serving import START_SECONDS, free_port

START = (sys.executable, "-c", "from sluice.gateway.commands.start import main; raise SystemExit(main())")
PORTS = tuple(getattr(Settings(), f"{name}_address").port for name in ("grpc", "control", "tcp", "http"))
CERTIFICATES = DEPLOY / "certificates.sh"


@dataclass
class Deployed:
    """One node of a deployment, as it is written there."""

    name: str
    """Where the others, and operators, reach it."""
    words: Sequence[str]
    """Behind `sluice`."""
    environment: Mapping[str, str]
    files: dict[str, str]
    """Path to content."""


@dataclass
class Cluster:
    """Three nodes, the first of them active, on this machine."""

    nodes: list[Deployed]
    key: Ed25519PrivateKey
    failover: str
    """The command that the deployment tells operators, from the first node to the second."""
    folders: dict[str, Path]
    """Paths of the deployment that all nodes see, and where they are here."""
    certify: Callable[[], None]
    """Make the nodes' certificates anew."""
    ports: dict[str, dict[int, int]] = field(default_factory=dict)


class RunningNode:
    """A node of a cluster, in a process of its own."""

    def __init__(self, cluster: Cluster, node: Deployed, folder: Path) -> None:
        self.name = node.name
        self.log_path, self.data_dir = folder / "log", folder / "data"
        self._cluster = cluster
        self._ports = cluster.ports[node.name]
        self.grpc_address = Address("127.0.0.1", self._ports[40840])
        self._process: subprocess.Popen[bytes] | None = None
        # Folders that only this node sees: data, and what is mounted into it.
        self._own = {path: str(self.data_dir) for path in ("/data", "/var/lib/sluice")}
        self._own |= {path: str(folder / "files" / path.lstrip("/")) for path in node.files}
        self.take_files(node.files)
        self.data_dir.mkdir()
        self.words = [self._mapped(word) for word in node.words]
        self.environment = {name: self._mapped(value) for name, value in node.environment.items()}

    def _mapped(self, text: str) -> str:
        """Return a text of the deployment with the places of this test."""
        for port in PORTS:
            text = text.replace(f"0.0.0.0:{port}", f"0.0.0.0:{self._ports[port]}")
        places = {path: str(here) for path, here in self._cluster.folders.items()} | self._own
        for path in sorted(places, key=len, reverse=True):
            text = re.sub(rf"(?<![\w./]){re.escape(path)}(?![\w.])", places[path], text)
        for name, ports in self._cluster.ports.items():
            for port, here in ports.items():
                text = re.sub(rf"(?<![\w.-]){re.escape(name)}:{port}\b", f"127.0.0.1:{here}", text)
        return text

    def take_files(self, files: Mapping[str, str]) -> None:
        """Write files of the deployment, by their paths there."""
        for path, content in files.items():
            here = Path(self._own[path])
            here.parent.mkdir(parents=True, exist_ok=True)
            here.write_text(self._mapped(content) if path.endswith(".toml") else content)

    def take_credentials(self, folder: Path) -> None:
        """Write what systemd copies from the node's folder of certificates when the service starts."""
        paths = [path for path in self._own if path.startswith("/run/credentials/")]
        self.take_files({path: (folder / Path(path).name).read_text() for path in paths})

    def lose_disk(self) -> None:
        shutil.rmtree(self.data_dir)
        self.data_dir.mkdir()

    async def page(self, path: str) -> str:
        """What it answers over HTTP with status 200; empty: nothing."""

        def ask_it() -> str:
            try:
                with urlopen(f"http://127.0.0.1:{self._ports[16007]}{path}", timeout=10) as answer:
                    return str(answer.read().decode())
            except OSError:
                return ""

        return await asyncio.to_thread(ask_it)

    async def is_ready(self) -> bool:
        """Whether /readyz says so, without a note about the cluster."""
        return await self.page("/readyz") == "ready\n"

    async def is_active(self) -> bool:
        return 'sluice_role{role="active"} 1.0\n' in await self.page("/metrics")

    async def certificate(self) -> str:
        """The certificate of its control address."""
        where = ("127.0.0.1", self._ports[40841])
        return await asyncio.to_thread(ssl.get_server_certificate, where, timeout=10)

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        environment = environment_without_settings() | {"PYTHONPATH": str(ROOT)} | self.environment
        count = self.lines().count("node started")
        with self.log_path.open("ab") as log:
            words = [*START, *self.words]
            self._process = await asyncio.to_thread(
                subprocess.Popen, words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        await until(lambda: self.lines().count("node started") > count or self.has_ended(), 0.05)
        assert not self.has_ended(), self.log_path.read_text()

    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def lines(self) -> list[str]:
        """The messages of its log; every whole line of it is a JSON object."""
        text = self.log_path.read_text("utf-8") if self.log_path.exists() else ""
        return [json.loads(line)["message"] for line in text.rpartition("\n")[0].splitlines()]

    async def end(self, number: signal.Signals) -> int:
        """End it by a signal; return its exit status."""
        assert self._process is not None
        self._process.send_signal(number)
        return await asyncio.to_thread(self._process.wait, START_SECONDS)

    def leave_nothing(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def image() -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables of the node's image, and its files."""
    text = (DEPLOY / "Containerfile").read_text("utf-8")
    stage = text.rpartition("\nFROM ")[2].replace("\\\n", " ")
    variables: dict[str, str] = {}
    for line in re.findall(r"(?m)^ENV (.*)$", stage):
        variables |= dict(word.split("=", 1) for word in line.split() if not word.startswith("PATH="))
    copies = re.findall(r"(?m)^COPY (deploy/\S+) (\S+)$", stage)
    return variables, {there: (ROOT / here).read_text("utf-8") for here, there in copies}


def certify(folder: Path, names: Sequence[str]) -> None:
    """Run the script of deploy/; the nodes of this test are all at 127.0.0.1."""
    words = [f"{name},127.0.0.1" for name in names]
    subprocess.run(["sh", str(CERTIFICATES), str(folder), *words], check=True, timeout=60)


def compose(folder: Path) -> Cluster:
    """The compose file: the service `chain` makes keys, certificates and the files of the nodes."""
    (file,) = documents(DEPLOY / "compose.yaml")
    variables, files = image()
    chain = folder / "chain"
    chain.mkdir()
    (script,) = file["services"]["chain"]["command"]
    script = script.replace("$$", "$").replace("/certificates.sh", str(CERTIFICATES))
    assert "node-a node-b node-c\nrole=" in script
    script = script.replace(
        "node-a node-b node-c\nrole=", "node-a,127.0.0.1 node-b,127.0.0.1 node-c,127.0.0.1\nrole="
    )
    # Nobody here publishes the blocks of the folder; more of them would only take longer.
    script = script.replace("--blocks 2000", "--blocks 2").replace("/chain", str(chain))
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = environment_without_settings() | {"PYTHONPATH": str(ROOT), "PATH": path}
    subprocess.run(["sh", "-c", script], env=environment, check=True, timeout=120)
    nodes = []
    for name, service in file["services"].items():
        if name.startswith("node-"):
            own = f"/chain/{name}.toml"
            given = {own: (chain / f"{name}.toml").read_text().replace(str(chain), "/chain")}
            nodes.append(Deployed(name, service["command"], variables, files | given))
    head = (DEPLOY / "compose.yaml").read_text().partition("\nname:")[0]
    (words,) = re.findall(r"exec node-b (sluice failover [^\\\n]*(?:\\\n#.*)?)", head)
    certify_again = partial(certify, chain / "tls", [node.name for node in nodes])
    key = load_private_key(chain / "key.pem")
    return Cluster(nodes, key, continued(words), {"/chain": chain}, certify_again)


def kubernetes(folder: Path, path: Path = RENDERED) -> Cluster:
    """The Kubernetes files, as the chart renders them with its default values but for the ledger key."""
    rendered = documents(path)
    by_kind = {(one["kind"], one["metadata"]["name"]): one for one in rendered}
    spec = by_kind["StatefulSet", "sluice"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    (pod_name,) = container["env"]
    assert pod_name["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    config = by_kind["ConfigMap", "sluice"]["data"]
    variables, files = image()
    nodes = []
    for number in range(spec["replicas"]):
        pod = f"sluice-{number}"
        words = [word.replace("$(POD_NAME)", pod) for word in container["args"]]
        mounted = {f"/etc/sluice/{name}": text for name, text in config.items()}
        mounted[f"/etc/sluice/{pod}.toml"] = mounted[f"/etc/sluice/{pod}.toml"].replace(
            "ledger_keys = []", f'ledger_keys = ["{ledger_key()}"]'
        )
        nodes.append(Deployed(f"{pod}.{spec['serviceName']}", words, variables, files | mounted))
    # One Secret for all nodes, as NOTES.txt says.
    notes = (CHART / "templates" / "NOTES.txt").read_text().replace("{{ $name }}", "sluice")
    names = ",".join(node.name for node in nodes)
    certify_again = partial(certify, folder / "tls", [names])
    certify_again()
    (words,) = re.findall(r"exec sluice-1 -- (sluice failover .*)", notes)
    return Cluster(nodes, KEY, words, {"/tls": folder / "tls" / nodes[0].name}, certify_again)


def systemd(folder: Path) -> Cluster:
    """The unit with what a cluster needs, on three machines."""
    unit = (DEPLOY / "systemd" / "sluice.service").read_text()
    more = (DEPLOY / "systemd" / "cluster.conf").read_text()
    example = (DEPLOY / "systemd" / "sluice.toml").read_text()
    (started,) = re.findall(r"(?m)^ExecStart=/opt/sluice/bin/sluice (.*)$", unit)
    (variables,) = re.findall(r"(?m)^Environment=(.*)$", unit)
    credentials = dict(one.split(":") for one in re.findall(r"(?m)^LoadCredential=(\S+)$", more))
    names = ["node-a", "node-b", "node-c"]
    certify_again = partial(certify, folder / "certificates", names)
    certify_again()
    nodes = []
    for number, name in enumerate(names):
        text = example.replace('# ledger_keys = ["ed25519:..."]', f'ledger_keys = ["{ledger_key()}"]')
        if number:
            text = re.sub(r'(?m)^role = "active"', 'role = "standby"', text)
            text = re.sub(r'(?m)^(grpc.advertised_address = )"node-a', rf'\1"{name}', text)
        tls = folder / "certificates" / name
        given = {
            f"/run/credentials/sluice.service/{credential}": (tls / Path(path).name).read_text()
            for credential, path in credentials.items()
        }
        environment = dict(one.split("=", 1) for one in variables.split())
        files = {"/etc/sluice/sluice.toml": text} | given
        nodes.append(Deployed(name, shlex.split(started), environment, files))
    (words,) = re.findall(r"&& (sluice failover [^\\\n]*(?:\\\n#.*)?)", more)
    tls = folder / "certificates" / "node-b"
    here = {file: tls / file for file in ("ca.crt", "tls.crt", "tls.key")}
    return Cluster(nodes, KEY, continued(words), here, certify_again)


def continued(words: str) -> str:
    """Return a command of a comment as one line."""
    return re.sub(r"\s*\\\n#\s*", " ", words)


async def told(places: dict[str, str], status: int) -> str:
    """Ask for the status until it ends so, and return what it says: nodes ask each other once a second."""
    give_up_at = time.monotonic() + START_SECONDS
    while True:
        try:
            return await ask(STATUS, places, status=status)
        except AssertionError:
            if time.monotonic() > give_up_at:
                raise
        await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def running(cluster: Cluster, folder: Path) -> AsyncIterator[list[RunningNode]]:
    """Run all nodes of a cluster; kill them at the end."""
    cluster.ports = {node.name: {port: free_port() for port in PORTS} for node in cluster.nodes}
    nodes = []
    for node in cluster.nodes:
        (folder / node.name).mkdir()
        nodes.append(RunningNode(cluster, node, folder / node.name))
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        yield nodes
    finally:
        for one in nodes:
            one.leave_nothing()


def places_of(cluster: Cluster) -> dict[str, str]:
    """Where the names and paths of the cluster's commands are here."""
    places = {
        f"{path}/" if here.is_dir() else path: f"{here}/" if here.is_dir() else str(here)
        for path, here in cluster.folders.items()
    }
    for name, ports in cluster.ports.items():
        places |= {f"{name}:{port}": f"127.0.0.1:{here}" for port, here in ports.items()}
    return places


def swapped(line: str, source: str, target: str) -> str:
    """Return the cluster's failover command between two other nodes."""
    line = re.sub(r"--from \S+", f"--from {source}:40841", line)
    return re.sub(r"--to \S+", f"--to {target}:40841", line)


@pytest.mark.slow
@pytest.mark.parametrize("deployment", [compose, kubernetes, systemd], ids=lambda made: made.__name__)
async def test_a_deployed_cluster_fails_over(deployment: Any, tmp_path: Path) -> None:
    cluster: Cluster = deployment(tmp_path)
    async with running(cluster, tmp_path) as (a, b, c):
        places = places_of(cluster)
        status = {"HOST:40840": str(a.grpc_address), "OTHER:40840": str(b.grpc_address)}
        publishing = Publishing([a, b, c], cluster.key)
        await publishing.more()

        # Nobody without a certificate of the nodes' authority changes a role.
        without = {"A:40841": places[f"{a.name}:40841"], "B:40841": places[f"{b.name}:40841"]}
        assert "UNAVAILABLE" in await ask(FAIL_OVER, without, status=1)

        text = await ask(cluster.failover, places)
        assert text.endswith(f"{places[f'{b.name}:40841']} is active\n")
        await publishing.more()

        await b.end(signal.SIGKILL)
        back = swapped(cluster.failover, b.name, a.name)
        assert "if that node is dead: --force" in await ask(back, places, status=1)
        assert (await ask(f"{back} --force", places)).endswith(f"{places[f'{a.name}:40841']} is active\n")
        await publishing.more()

        await b.start()  # as it was: active
        text = await told(status, 1)  # once they know of each other
        assert "two nodes are active" in text
        assert len(re.findall(r"(?m)^\S+ +active ", text)) == 2
        await ask(back, places)
        await publishing.more()
        await publishing.end()
        last = max(publishing.client.acknowledged)
        await told(status, 0)  # once they know that one has stepped back
        for node in (a, b, c):
            await until(partial(has_block, node, status, last), 0.1)
        text = await told(status, 0)
        assert (text.count("active"), text.count("standby")) == (1, 1)
        assert "agree" in text
        for node in (a, b, c):
            assert await node.end(signal.SIGTERM) == 0
            node.lines()  # all of them JSON


def with_a_fourth(cluster: Cluster) -> Deployed:
    """Put a fourth node, a standby, into the files of the cluster; return it."""
    last = cluster.nodes[-1]
    name = {"node-c": "node-d"}.get(last.name, last.name.replace("-2.", "-3."))
    before, after = last.name.partition(".")[0], name.partition(".")[0]
    for node in cluster.nodes:
        for path in node.files:
            both = f'"{last.name}:40840", "{name}:40840"]'
            node.files[path] = node.files[path].replace(f'"{last.name}:40840"]', both)
    advertised = rf'(?m)^("?grpc.advertised_address"? = )"{re.escape(last.name)}'
    files = {
        path.replace(before, after): re.sub(advertised, rf'\1"{name}', content)
        for path, content in last.files.items()
    }
    words = [word.replace(before, after) for word in last.words]
    return Deployed(name, words, last.environment, files)


@pytest.mark.slow
@pytest.mark.parametrize("deployment", [kubernetes, systemd], ids=lambda made: made.__name__)
async def test_a_deployed_cluster_is_operated(deployment: Any, tmp_path: Path) -> None:
    """Upgraded, robbed of a disk, given certificates, backed up and restored, made larger and smaller."""
    cluster: Cluster = deployment(tmp_path)
    async with running(cluster, tmp_path) as nodes:
        a, b, c = nodes
        status = {"HOST:40840": str(a.grpc_address), "OTHER:40840": str(b.grpc_address)}
        added = with_a_fourth(cluster)
        cluster.ports[added.name] = {port: free_port() for port in PORTS}
        (tmp_path / added.name).mkdir()
        d = RunningNode(cluster, added, tmp_path / added.name)
        # A publisher goes to the nodes that it was told of. Its chain lasts for three minutes.
        publishing = Publishing([*nodes, d], cluster.key, pause_seconds=0.1)
        await publishing.more()

        async def level(*others: RunningNode) -> None:
            last = max(publishing.client.acknowledged)
            for node in others:
                await until(partial(has_block, node, status, last), 0.1)
                await until(node.is_ready, 0.1)

        async def stop(node: RunningNode) -> None:
            assert await node.end(signal.SIGTERM) == 0

        async def restart(*others: RunningNode) -> None:
            for node in others:
                await stop(node)
                await node.start()
                await publishing.more()
                await level(node)

        async def fail_over(source: RunningNode, target: RunningNode, how: str = "") -> None:
            words = swapped(cluster.failover, source.name, target.name)
            await ask(words + how, places_of(cluster))

        # "Upgrade".
        await restart(c, b)
        await fail_over(a, b)
        await restart(a)

        # "The disk is dead": that of the active node.
        await stop(b)
        b.lose_disk()
        await fail_over(b, a, " --force")
        await publishing.more()
        await b.start()  # its file says that it stands by
        await level(b, c)

        # "A certificate ends".
        before = {node.name: await node.certificate() for node in nodes}
        cluster.certify()
        if deployment is systemd:
            for node in nodes:
                node.take_credentials(tmp_path / "certificates" / node.name)
            await restart(b, c)
            await fail_over(a, b)
            await restart(a)
            await fail_over(b, a)
        for node in nodes:

            async def is_renewed(node: RunningNode = node) -> bool:
                return await node.certificate() != before[node.name]

            await until(is_renewed, 0.2)
        await fail_over(a, c)
        await publishing.more()

        # "Back up and restore".
        (tmp_path / "backup").mkdir()
        folders = {"/var/lib/sluice": str(c.data_dir), "/backup": str(tmp_path / "backup")}
        await ask(BACK_UP, folders)
        assert "sound" in await ask(CHECK_BACKUP, folders)
        await stop(b)
        b.lose_disk()
        await ask(RESTORE, folders | {"/var/lib/restored": str(b.data_dir)})
        await b.start()
        await publishing.more()
        await level(a, b)

        # "Add or remove a node".
        try:
            if deployment is systemd:
                certify(tmp_path / "certificates", [added.name])
                d.take_credentials(tmp_path / "certificates" / added.name)
            await d.start()
            await level(d)
            for node, deployed in zip(nodes, cluster.nodes, strict=True):
                node.take_files(
                    {path: text for path, text in deployed.files.items() if path.endswith(".toml")}
                )
            await restart(a, b)
            await fail_over(c, b)
            await restart(c)
            await fail_over(b, d)
            await publishing.more()
            await fail_over(d, a)
            await stop(d)
            await publishing.more()
        finally:
            d.leave_nothing()
        await publishing.end()
        await level(a, b, c)
        for node in nodes:
            await stop(node)
            node.lines()  # all of them JSON
        for node in (b, c):
            compared = compare_streams(a.data_dir / "datastream.bin", node.data_dir / "datastream.bin")
            assert compared.is_equal, compared.difference


async def active_of(nodes: Sequence[RunningNode]) -> RunningNode:
    """Wait until one of them says that it is active: metrics are renewed once a second."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            for node in nodes:
                if await node.is_active():
                    return node
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_nodes_of_the_chart_elect_the_active_one(tmp_path: Path) -> None:
    """With the settings that values.yaml names, and a real etcd."""
    with running_etcd(tmp_path / "etcd") as etcd:
        values = (
            *(r"settings.failover\.automatic=true", rf"settings.failover\.etcd={etcd.address}"),
            "networkPolicy.egress[0].ports[0].port=2379",
        )
        rendered = tmp_path / "rendered.yaml"
        words = [word for value in values for word in ("--set", value)]
        rendered.write_text(expect_helm("template", "sluice", "--namespace", "sluice", *words))
        cluster = kubernetes(tmp_path, rendered)
        async with running(cluster, tmp_path) as nodes:
            publishing = Publishing(nodes, cluster.key, pause_seconds=0.1)
            for _ in range(2):
                await publishing.more()
                active = await active_of(nodes)
                await active.end(signal.SIGKILL)
                await publishing.more()
                await active.start()
                await until(active.is_ready, 0.1)
                assert not await active.is_active()
            await publishing.end()
