"""TLS to the queue's server, with an authority of our own: who comes through, who is refused, and whose fault it is."""

from __future__ import annotations

import html
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from collimate_rl.errors import QueueError, RedisUnavailable
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.server import find_servers
from producer import Producer
from tests.fixtures.acl_users import GuardedRedis, password
from tests.fixtures.authority import Authority
from tests.fixtures.dashboards import DashboardProcess
from tests.fixtures.deployments import DEPLOY
from tests.fixtures.sandbox_daemon import RunningDaemon
from tests.fixtures.worker_batches import RIGHT, SPEC, WRONG
from tests.fixtures.worker_nodes import HASTY, Node, until


def look_at_the_page(secured: Secured, batch: str, log: Path) -> None:
    """A dashboard in a process of its own shows the queue, from its numbers down to a candidate, and ends in order."""
    dashboard = DashboardProcess(secured.url("dashboard"), log=log)
    try:
        overview = until(lambda: (page := dashboard.get("/").text).count("/runs/tls") and page)
        assert "n1" in overview
        found = dashboard.get(f"/find?q=tls/{batch}")
        assert (found.status, found.headers["location"][:9]) == (303, "/batches/")
        candidate = dashboard.get(f"{found.headers['location']}/0")
        assert candidate.status == 200
        assert html.escape(RIGHT.splitlines()[0]) in candidate.text
        assert dashboard.stop() == 0
    finally:
        dashboard.end()
    assert "Traceback" not in log.read_text()
    assert password("dashboard") not in log.read_text()


@dataclass(frozen=True, kw_only=True)
class Secured:
    """A server that listens with TLS alone, under the product's users. Its certificate is for localhost."""

    port: int
    ca_file: str

    def url(self, user: str, *, ca_file: str | None = None, host: str = "localhost", scheme: str = "rediss") -> str:
        query = f"?ssl_ca_certs={ca_file or self.ca_file}" if scheme == "rediss" else ""
        return f"{scheme}://{user}:{password(user)}@{host}:{self.port}/0{query}"


@pytest.fixture(scope="module")
def secured(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    binary = find_servers().get("redis")
    if binary is None:
        pytest.skip("no redis server on this machine")
    folder: Path = tmp_path_factory.mktemp("tls")
    issued = authority.ca.issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(folder / "server.key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "server.crt"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = (
        ("bind", "127.0.0.1"),
        ("tls-port", str(port)),
        ("tls-cert-file", str(folder / "server.crt")),
        ("tls-key-file", str(folder / "server.key")),
        ("tls-ca-cert-file", authority.ca_file),
        ("tls-auth-clients", "no"),
    )
    with GuardedRedis(binary=binary, options=options) as server:
        yield Secured(port=port, ca_file=authority.ca_file)
        assert server.denials() == []


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The PEM file of an authority that has nothing to do with the server."""
    path = str(tmp_path_factory.mktemp("other") / "ca.pem")
    trustme.CA().cert_pem.write_to_path(path)
    return path


def run(*words: str, url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, "COLLIMATE_REDIS_URL": url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_group_is_graded_over_tls(secured: Secured, sandbox_daemon: RunningDaemon, tmp_path: Path) -> None:
    node = Node(tmp_path, secured.url("worker"), f"unix:{sandbox_daemon.socket_path}", timing=HASTY)
    try:
        node.start().wait_for("worker_ready")
        with Producer(secured.url("producer"), run="tls") as producer:
            result = producer.submit(template="py", candidates=[RIGHT, WRONG], spec=SPEC).result(60)
        assert [verdict.reward for verdict in result.results] == [1.0, 0.0]
        seen = run("worker", "status", "--json", url=secured.url("dashboard"))
        assert (seen.returncode, [view["name"] for view in json.loads(seen.stdout)["nodes"]]) == (0, ["n1"])
        look_at_the_page(secured, result.id, tmp_path / "dashboard.log")
        assert node.stop() == 0
    finally:
        node.end()


def test_the_authority_may_be_the_systems_own(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", secured.ca_file)
    client = connect_commands(secured.url("dashboard").partition("?")[0])
    assert client.ping() is True
    client.close()


@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_a_server_that_is_not_vouched_for_is_refused_by_everybody(secured: Secured, other_ca: str, wrong: str) -> None:
    def url(user: str) -> str:
        return secured.url(user, ca_file=other_ca) if wrong == "authority" else secured.url(user, host="127.0.0.1")

    said = "unable to get local issuer|self.signed" if wrong == "authority" else "IP address mismatch"
    with (
        pytest.raises(QueueError, match=f"certificate is not trusted.*(?:{said}).*ssl_ca_certs") as caught,
        Producer(url("producer"), run="tls") as producer,
    ):
        producer.open()
    assert not isinstance(caught.value, RedisUnavailable)
    for words, user in ((["status"], "dashboard"), (["--backend", "unix:/nowhere"], "worker")):
        done = run("worker", *words, url=url(user))
        assert done.returncode == 2, done.stderr
        assert "the Redis server's certificate is not trusted" in done.stderr
        assert password(user) not in done.stderr


def test_a_dashboard_shows_nothing_of_a_server_that_is_not_vouched_for_and_says_so(
    secured: Secured, other_ca: str, tmp_path: Path
) -> None:
    dashboard = DashboardProcess(secured.url("dashboard", ca_file=other_ca), log=tmp_path / "log")
    try:
        for path, status in (("/", 200), ("/batches", 503), (f"/batches/{'0' * 32}", 503)):
            page = dashboard.get(path)
            assert (page.status, "certificate is not trusted" in page.text) == (status, True), path
            assert password("dashboard") not in page.text
        assert dashboard.stop() == 0
    finally:
        dashboard.end()


def test_an_authority_that_is_not_there_is_the_settings_fault(secured: Secured) -> None:
    missing = secured.url("worker", ca_file="/nowhere/ca.pem")
    for words in (
        ["worker"],
        ["worker", "status"],
        ["worker", "dashboard", "--port", "0"],
        ["producer", "submit", "-", "--run", "tls"],
    ):
        done = run(*words, url=missing)
        assert (done.returncode, done.stdout) == (2, "")
        assert "ssl_ca_certs in the Redis URL names '/nowhere/ca.pem', which cannot be read" in done.stderr


class PodsRedis(GuardedRedis):
    """A server that reads deploy/kubernetes/redis-here.conf, with the pod's folders somewhere below its own."""

    tls_port = 0

    @property
    def command(self) -> list[str]:
        told = super().command
        places = {
            "/etc/redis/redis.conf": str(DEPLOY / "redis/redis.conf"),
            "/etc/redis-tls": str(self.directory),
            "/run/redis/users.acl": told[told.index("--aclfile") + 1],
            "/run/redis/redis.sock": str(self.socket_path),
            "dir /data": f"dir {self.directory}",
            "tls-port 6379": f"tls-port {self.tls_port}",
            "bind * -::*": "bind 127.0.0.1",
        }
        text = (DEPLOY / "kubernetes/redis-here.conf").read_text(encoding="utf-8")
        for place, here in places.items():
            assert place in text, place
            text = text.replace(place, here)
        conf = self.directory / "here.conf"
        conf.write_text(text)
        return [told[0], str(conf), "--logfile", str(self.log_path)]


def test_the_pods_server_starts_and_takes_tls_alone(authority: Authority) -> None:
    binary = find_servers().get("redis")
    if binary is None:
        pytest.skip("no redis server on this machine")
    made = PodsRedis(binary=binary)
    issued = authority.ca.issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(made.directory / "tls.key"))
    issued.cert_chain_pems[0].write_to_path(str(made.directory / "tls.crt"))
    authority.ca.cert_pem.write_to_path(str(made.directory / "ca.crt"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        made.tls_port = free.getsockname()[1]
    with made as server:
        admin = connect_commands(server.url)
        wanted = {"port": "0", "appendonly": "yes", "maxmemory-policy": "noeviction", "tls-auth-clients": "no"}
        assert {name: admin.config_get(name)[name] for name in wanted} == wanted
        secured = Secured(port=server.tls_port, ca_file=authority.ca_file)
        for client in (
            connect_commands(secured.url("worker")),
            connect_commands(f"unix://probe:x@{server.socket_path}"),
        ):
            assert client.ping() is True
            client.close()
        admin.close()


def test_nobody_comes_in_without_tls(secured: Secured) -> None:
    with (
        pytest.raises(RedisUnavailable, match="is this its address"),
        Producer(secured.url("producer", scheme="redis"), run="tls") as producer,
    ):
        producer.open()
