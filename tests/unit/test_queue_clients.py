"""Connections and the server check, without a server."""

from __future__ import annotations

import ssl
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis import exceptions as redis_errors

from collimate_rl.errors import QueueError, RedisUnavailable, UnsuitableServer
from collimate_rl.protocol.bounds import mask_secrets
from collimate_rl.queue._raw import text
from collimate_rl.queue.clients import (
    connect_blocking,
    connect_commands,
    connect_rq,
    normal_url,
    translate_errors,
)
from collimate_rl.queue.server_check import check_server, check_version


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("rediss://h", "rediss://h"),
        ("unix:///run/r.sock", "unix:///run/r.sock"),
        ("unix:/run/r.sock", "unix:///run/r.sock"),
        ("/run/r.sock", "unix:///run/r.sock"),
    ],
)
def test_urls(given: str, meant: str) -> None:
    assert normal_url(given) == meant


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:pa55word@host:1/0", "redis://user:***@host:1/0"),
        ("redis://:pa55word@host", "redis://:***@host"),
        ("redis://pa55word@host", "redis://***@host"),
        ("redis://:pa55@pa55word@host:1/0", "redis://:***@host:1/0"),
        ("redis://:pa55word/x@host:1", "redis://:***@host:1"),
        ("redis://u:pa55word#x?y@host:1", "redis://u:***@host:1"),
        ("redis:/u:pa55word@host", "redis:/u:***@host"),
        ("rediss//:pa55word@host", "rediss//:***@host"),
        ("u:pa55word@host", "u:***@host"),
        ("gateway:https://u:pa55word@host", "gateway:https://u:***@host"),
        ("redis://host/0?password=pa55word&protocol=2", "redis://host/0?password=***&protocol=2"),
        ("redis://host/0?a=b&ssl_password=pa55#word", "redis://host/0?a=b&ssl_password=***"),
        ("redis://host/0?password=pa55@pa55word", "redis://***"),
        ("unix://u:pa55word@/run/r.sock", "unix://u:***@/run/r.sock"),
        ("unix:///run/a:b@c.sock", "unix:///run/a:b@c.sock"),
        ("/run/a@b.sock", "/run/a@b.sock"),
        ("redis://host:6379/0", "redis://host:6379/0"),
    ],
)
def test_secrets_are_masked_rather_too_much_than_in_part(url: str, shown: str) -> None:
    assert mask_secrets(url) == shown
    assert "pa55" not in shown


@pytest.mark.parametrize(
    "url",
    [
        "http://u:pa55word@host",
        "redis:/u:pa55word@host",
        "rediss//:pa55word@host",
        "redis://:pa55word/x@host:1/0",
        "redis://u:pa55word#x@host:1/0",
        "redis://u:pa55word@[::1/0",
        "redis://u:pa55word@host:port/0",
    ],
)
def test_a_url_that_is_refused_is_not_quoted_with_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="names no Redis server") as caught:
        connect_commands(url)
    assert "pa55" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("asked", ["no_such=1", "socket_timeout=soon", "password=pa55word&no_such=1"])
def test_what_no_connection_takes_is_told_at_once(asked: str) -> None:
    with pytest.raises(
        ValueError, match=r"asks in its query for what there is not: .*(no_such|socket_timeout)"
    ) as caught:
        connect_commands(f"redis://h:1/0?{asked}")
    assert "pa55" not in str(caught.value)


def test_a_name_is_asked_for_as_it_was_read() -> None:
    encoder: Any = connect_commands("redis://h:1/0").get_encoder()
    assert encoder.encode(text(b"\xed\xa0\x80")) == b"\xed\xa0\x80"


def test_a_relative_socket_is_taken_from_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert normal_url("unix:run/r.sock") == f"unix://{tmp_path}/run/r.sock"
    assert kwargs(connect_commands("unix:run/r.sock"))["path"] == f"{tmp_path}/run/r.sock"
    assert normal_url("unix://user:secret@/run/r.sock") == "unix://user:secret@/run/r.sock"


@pytest.mark.parametrize("url", ["", "h:6379", "http://h", "localhost", "unix", "unix:", "unix://run/r.sock"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match="names no Redis server"):
        connect_commands(url)


def test_tls_is_checked_against_an_authority_that_can_be_read(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    assert kwargs(connect_commands(f"rediss://h:1/0?ssl_ca_certs={ca}"))["ssl_ca_certs"] == str(ca)
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        with pytest.raises(ValueError, match=rf"{name} .* cannot be read: No such file"):
            connect_rq(f"rediss://h?{name}={tmp_path}/other.pem")


@pytest.mark.parametrize("query", ["ssl_cert_reqs=none", "ssl_cert_reqs=optional", "ssl_check_hostname=False"])
def test_tls_without_a_check_of_the_server_is_refused(query: str) -> None:
    for connect in (connect_commands, connect_rq):
        with pytest.raises(ValueError, match="name the authority that vouches for it in ssl_ca_certs"):
            connect(f"rediss://user:secret@h/0?{query}")


def test_a_certificate_that_is_not_trusted_is_no_outage() -> None:
    untrusted = ssl.SSLCertVerificationError(1, "certificate verify failed")
    untrusted.verify_message = "self-signed certificate in certificate chain"
    wrapped = redis_errors.ConnectionError("Error 1 connecting to h:1.")
    wrapped.__cause__ = untrusted
    with pytest.raises(QueueError, match=r"not trusted.*self-signed.*ssl_ca_certs") as caught, translate_errors("look"):
        raise wrapped
    assert not isinstance(caught.value, RedisUnavailable)


def kwargs(client: Redis) -> dict[str, Any]:
    return dict(client.connection_pool.connection_kwargs)


def test_each_kind_has_its_timeouts_and_retries() -> None:
    for url in ("redis://h", "unix:/r"):
        commands, blocking, rq = connect_commands(url), connect_blocking(url, 7.0), connect_rq(url)
        assert [kwargs(c)["retry"].get_retries() for c in (commands, blocking, rq)] == [2, 0, 0]
        assert [kwargs(c)["socket_timeout"] for c in (commands, blocking, rq)] == [5.0, 12.0, 15.0]
        assert {kwargs(c)["protocol"] for c in (commands, blocking, rq)} == {2}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (redis_errors.ConnectionError("x"), RedisUnavailable),
        (redis_errors.TimeoutError("x"), RedisUnavailable),
        (redis_errors.BusyLoadingError("x"), RedisUnavailable),
        (redis_errors.ReadOnlyError("x"), RedisUnavailable),
        (redis_errors.NoScriptError("x"), RedisUnavailable),
        (redis_errors.MasterDownError("x"), RedisUnavailable),
        (redis_errors.ResponseError("NOREPLICAS Not enough good replicas to write."), RedisUnavailable),
        (redis_errors.ResponseError("ERR Error running script: -MISCONF Errors writing to the AOF"), RedisUnavailable),
        (redis_errors.AuthenticationError("x"), QueueError),
        (redis_errors.NoPermissionError("x"), QueueError),
        (redis_errors.OutOfMemoryError("x"), RedisUnavailable),
        (redis_errors.ResponseError("x"), QueueError),
    ],
)
def test_errors_become_ours(theirs: Exception, ours: type[Exception]) -> None:
    with pytest.raises(QueueError, match="do something") as caught, translate_errors("do something"):
        raise theirs
    assert type(caught.value) is ours


class Stub:
    """Answers INFO and CONFIG as told; None is a denial."""

    def __init__(self, info: dict[str, Any] | None, policy: str | None, memory: dict[str, Any] | None = None) -> None:
        self.sections = {"server": info, "cluster": {}, "memory": memory}
        self.policy = policy

    def info(self, section: str) -> dict[str, Any]:
        told = self.sections[section]
        if told is None:
            raise redis_errors.NoPermissionError("denied")
        return told

    def config_get(self, name: str) -> dict[str, str]:
        if self.policy is None:
            raise redis_errors.ResponseError("unknown command 'CONFIG'")
        return {name: self.policy}


def check(stub: Stub) -> str:
    return check_server(stub)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["6.2.0", "6.2.14", "7.0.15", "8.4.0", "10.0.0"])
def test_versions_that_do(version: str) -> None:
    assert check(Stub({"redis_version": version}, "noeviction")) == f"Redis {version}"


@pytest.mark.parametrize("version", ["2.8.4", "5.0.14", "6.0.16"])
def test_versions_that_are_too_old(version: str) -> None:
    with pytest.raises(UnsuitableServer, match=r"too old: 6\.2 or later") as caught:
        check(Stub({"redis_version": version}, "noeviction"))
    assert version in str(caught.value)


def test_any_valkey_does_though_it_names_an_old_redis() -> None:
    assert (
        check_version({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"}) == "Valkey 9.1.2"
    )


def test_a_hidden_version_is_let_through() -> None:
    assert check(Stub(None, "noeviction")) == "Redis of unknown version"


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
def test_an_evicting_server_is_refused(policy: str) -> None:
    with pytest.raises(UnsuitableServer, match="set maxmemory-policy to noeviction"):
        check(Stub({"redis_version": "7.0.0"}, policy))
    with pytest.raises(UnsuitableServer, match=policy):
        check(Stub({"redis_version": "7.0.0"}, None, {"maxmemory_policy": policy}))


def test_where_config_is_denied_info_is_asked_and_where_that_is_too_it_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(Stub({"redis_version": "7.0.0"}, None, {"maxmemory_policy": "noeviction"}))
    with pytest.warns(RuntimeWarning, match="make sure that it is noeviction"):
        check(Stub({"redis_version": "7.0.0"}, None, None))


def test_a_cluster_is_refused() -> None:
    stub = Stub({"redis_version": "7.0.0"}, "noeviction")
    stub.sections["cluster"] = {"cluster_enabled": 1}
    with pytest.raises(UnsuitableServer, match="cluster"):
        check(stub)
