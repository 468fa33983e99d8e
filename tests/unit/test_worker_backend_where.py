"""Which client a setting `backend` means, and what a gateway's places are by default."""

from __future__ import annotations

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.gateway import GatewayClient
from worker.__main__ import main
from worker.backend import Backend, client_for, endpoint_of, is_this_nodes
from worker.gateway_slots import default_cap
from worker.settings import WorkerSettings

KEY = "col_demo_abcd1234_" + "s" * 32


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("COLLIMATE_SERVE_SOCKET", "COLLIMATE_API_KEY", "COLLIMATE_SERVE_URL", "COLLIMATE_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_gateway_is_https_with_a_key_or_named_as_one(environment: pytest.MonkeyPatch) -> None:
    assert isinstance(client_for("https://daemon.example"), CollimateClient)
    with pytest.raises(ValueError, match="COLLIMATE_API_KEY"):
        client_for("gateway:http://127.0.0.1:8090")
    environment.setenv("COLLIMATE_API_KEY", KEY)
    for where, origin in (
        ("https://gateway.example", "https://gateway.example"),
        ("gateway:http://127.0.0.1:8090", "http://127.0.0.1:8090"),
        ("", "https://api.collimate.ai"),
    ):
        found = client_for(where)
        assert isinstance(found, GatewayClient)
        assert endpoint_of(found) == origin
    for where in ("http://127.0.0.1:8080", "unix:/run/s"):
        assert isinstance(client_for(where), CollimateClient)
    assert not is_this_nodes("https://gateway.example")
    assert is_this_nodes("unix:/run/s")


def test_a_gateway_is_up_when_its_health_answers(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("COLLIMATE_API_KEY", KEY)

    class Healthy(GatewayClient):
        def health(self) -> dict[str, object]:
            return {"service": "whatever it says"}

    state = Backend("gateway:https://gateway.example", client=Healthy()).ready()
    assert (state.up, state.templates, state.capabilities) == (True, None, {"label"})


def test_a_worker_without_its_gateways_key_is_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--backend", "gateway:https://gateway.example"]) == 2
    assert capsys.readouterr().err.startswith("worker: backend: the gateway needs a key")


def test_the_cap_of_a_key() -> None:
    assert default_cap(GatewayClient(KEY)) == 8
    assert default_cap(GatewayClient("col_pro_x")) is None
    assert WorkerSettings(gateway_cap=2).gateway_cap == 2
    for wrong in (1, -1):
        with pytest.raises(ValueError, match="gateway_cap"):
            WorkerSettings(gateway_cap=wrong)
    with pytest.raises(ValueError, match="backend"):
        WorkerSettings(backend="gateway:unix:/run/s")
