"""`CollimateProvider` without OpenEnv: what it asks of the backend, what it raises, and that nothing is left behind."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from collimate_rl._transport import Answer
from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateDrainingError, CollimateError, UnreachableError
from collimate_rl.gateway import GatewayClient
from collimate_rl.openenv import CollimateProvider, collimate_provider, image_to_template
from collimate_rl.openenv.readiness import wait_until_healthy
from tests.fixtures.scripted_server import ScriptedServer, answer, drip, frame, hang_up, refuse

CREATED = {"session_id": "s1", "template_id": "coding-env", "endpoints": {"8000": "127.0.0.1:4000"}}
DELETED = {"deleted": True, "session_id": "s1"}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


def asked(server: ScriptedServer) -> list[tuple[str, str]]:
    return [(request.method, request.path) for request in server.requests]


class Refusing:
    """A transport that always gives the same answer, and counts."""

    address = "refusing"

    def __init__(self, status: int, body: bytes) -> None:
        self.answer = Answer(status=status, body=body)
        self.requests = 0

    def request(self, method: str, path: str, body: bytes | None = None, **_: Any) -> Answer:
        self.requests += 1
        return self.answer

    def close(self) -> None:
        """Nothing is open."""


def refusing(code: str, status: int) -> tuple[CollimateProvider, Refusing]:
    transport = Refusing(status, b'{"error": "no", "error_code": "%s"}' % code.encode())
    client = CollimateClient(transport=transport, sleep=lambda _: None)
    return CollimateProvider(client=client), transport


@pytest.mark.parametrize(
    ("image", "template"),
    [
        ("coding-env", "coding-env"),
        ("coding-env:latest", "coding-env"),
        ("registry.example/org/coding-env:v1.2", "coding-env"),
        ("registry.example:5000/coding-env", "coding-env"),
        ("registry.example:5000/org/coding-env:v1@sha256:" + "ab" * 32, "coding-env"),
        ("org/coding-env@sha256:" + "ab" * 32, "coding-env"),
        ("registry.hf.space/openenv-echo-env:latest", "openenv-echo-env"),
        ("snapshot:tpl-7f3a", "tpl-7f3a"),
        ("snapshot:tpl:7/f3a", "tpl:7/f3a"),
    ],
)
def test_an_image_stands_for_a_template(image: str, template: str) -> None:
    assert image_to_template(image) == template


@pytest.mark.parametrize("image", ["", "snapshot:", "org/", ":v1", "@sha256:ab", "a/ b"])
def test_an_image_without_a_name_is_refused(image: str) -> None:
    with pytest.raises(ValueError, match="template_for_image"):
        image_to_template(image)


def test_the_signature_is_the_documented_one() -> None:
    parameters = inspect.signature(CollimateProvider).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == {
        "base_url": None,
        "template_for_image": None,
        "env_port": 8000,
        "request_timeout": 60.0,
        "ready_timeout": 60.0,
        "api_key": None,
        "client": None,
    }
    assert list(inspect.signature(CollimateProvider.start_container).parameters)[1:] == ["image", "port", "env_vars"]
    assert collimate_provider.CollimateProvider is CollimateProvider


def test_a_start_and_a_stop(server: ScriptedServer) -> None:
    server.script = [answer(CREATED, 201), answer(DELETED)]
    provider = CollimateProvider(server.base_url)
    assert provider.session_id is None
    assert provider.start_container("org/coding-env:v1", env_vars={}) == "http://127.0.0.1:4000"
    assert provider.session_id == "s1"
    provider.stop_container()
    provider.stop_container()
    provider.close()
    assert asked(server) == [("POST", "/v1/sessions"), ("DELETE", "/v1/sessions/s1")]
    assert server.requests[0].json == {"template_id": "coding-env"}


def test_a_context_stops_what_it_started(server: ScriptedServer) -> None:
    server.script = [answer(CREATED, 201), answer(DELETED)]
    with CollimateProvider(server.base_url) as provider:
        provider.start_container("coding-env")
    assert asked(server)[-1] == ("DELETE", "/v1/sessions/s1")


def test_a_dict_names_templates_and_other_images_go_by_their_names(server: ScriptedServer) -> None:
    server.script = [answer(CREATED, 201), answer(DELETED), answer(CREATED, 201), answer(DELETED)]
    provider = CollimateProvider(server.base_url, {"coding-env:v1": "tpl-1"})
    for image in ("coding-env:v1", "coding-env:v2"):
        provider.start_container(image)
        provider.stop_container()
    created = [request.json["template_id"] for request in server.requests if request.method == "POST"]
    assert created == ["tpl-1", "coding-env"]


def test_a_function_is_given_the_variables(server: ScriptedServer) -> None:
    def resolve(image: str, env_vars: Mapping[str, str]) -> str:
        return f"{image}-{env_vars['LEVEL']}"

    server.script = [answer(CREATED, 201), answer(DELETED)]
    with CollimateProvider(server.base_url, resolve) as provider:
        provider.start_container("coding-env", env_vars={"LEVEL": "3"})
    assert server.requests[0].json == {"template_id": "coding-env-3"}


@pytest.mark.parametrize("given", [None, {"coding-env": "tpl-1"}])
def test_variables_that_nothing_would_set_are_refused_before_anything_is_asked(
    server: ScriptedServer, given: dict[str, str] | None
) -> None:
    provider = CollimateProvider(server.base_url, given)
    with pytest.raises(ValueError, match="LEVEL"):
        provider.start_container("coding-env", env_vars={"LEVEL": "3"})
    assert server.requests == []


def test_a_function_that_names_no_template_is_told_of(server: ScriptedServer) -> None:
    resolve: Callable[..., Any] = lambda image, env_vars: None  # noqa: E731
    with pytest.raises(ValueError, match="template_for_image"):
        CollimateProvider(server.base_url, resolve).start_container("coding-env")
    assert server.requests == []


@pytest.mark.parametrize("port", [0, 65536, True, "8000"])
def test_a_port_that_cannot_be_is_refused(server: ScriptedServer, port: Any) -> None:
    with pytest.raises(ValueError, match="port"):
        CollimateProvider(server.base_url, env_port=port)
    with pytest.raises(ValueError, match="port"):
        CollimateProvider(server.base_url).start_container("coding-env", port=port)
    assert server.requests == []


def test_the_port_is_the_servers_in_the_sandbox(server: ScriptedServer) -> None:
    both = {**CREATED, "endpoints": {"8000": "127.0.0.1:4000", "9000": "127.0.0.1:4001"}}
    server.script = [answer(both, 201), answer(DELETED), answer(both, 201), answer(DELETED)]
    with CollimateProvider(server.base_url, env_port=9000) as provider:
        assert provider.start_container("coding-env") == "http://127.0.0.1:4001"
        provider.stop_container()
        assert provider.start_container("coding-env", port=8000) == "http://127.0.0.1:4000"


@pytest.mark.parametrize("endpoints", [None, {}, {"9000": "127.0.0.1:4000"}, {"8000": 4000}])
def test_a_port_that_is_not_exposed_is_raised_and_the_session_deleted(server: ScriptedServer, endpoints: Any) -> None:
    server.script = [answer({**CREATED, "endpoints": endpoints}, 201), answer(DELETED)]
    provider = CollimateProvider(server.base_url)
    with pytest.raises(CollimateError, match="expose_ports") as caught:
        provider.start_container("coding-env")
    assert caught.value.error_code == "port_not_exposed"
    assert provider.session_id is None
    assert asked(server)[-1] == ("DELETE", "/v1/sessions/s1")


def test_an_answer_that_is_off_leaves_no_session(server: ScriptedServer) -> None:
    server.script = [answer({**CREATED, "fork_time_ms": "soon"}, 201), answer(DELETED)]
    with pytest.raises(CollimateError):
        CollimateProvider(server.base_url).start_container("coding-env")
    assert asked(server)[-1] == ("DELETE", "/v1/sessions/s1")


def test_a_second_start_is_refused_and_the_first_lives_on(server: ScriptedServer) -> None:
    server.script = [answer(CREATED, 201)]
    provider = CollimateProvider(server.base_url)
    provider.start_container("coding-env")
    with pytest.raises(CollimateError, match="s1"):
        provider.start_container("coding-env")
    assert provider.session_id == "s1"
    assert len(server.requests) == 1


def test_a_stop_that_failed_can_be_repeated(server: ScriptedServer) -> None:
    server.script = [answer(CREATED, 201), hang_up, answer(DELETED)]
    provider = CollimateProvider(client=CollimateClient(server.base_url, retries=0))
    provider.start_container("coding-env")
    with pytest.raises(CollimateError):
        provider.stop_container()
    assert provider.session_id == "s1"
    provider.stop_container()
    assert provider.session_id is None


def test_what_a_failed_start_could_not_delete_is_deleted_by_the_next_stop(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.script = [answer({**CREATED, "endpoints": {}}, 201), hang_up, answer(DELETED)]
    provider = CollimateProvider(client=CollimateClient(server.base_url, retries=0))
    with pytest.raises(CollimateError, match="expose no port"):
        provider.start_container("coding-env")
    assert "s1" in caplog.text
    provider.stop_container()
    assert asked(server)[1:] == [("DELETE", "/v1/sessions/s1")] * 2


@pytest.mark.parametrize(
    ("code", "status", "requests", "raised"),
    [
        ("at_capacity", 503, 4, CollimateError),
        ("draining", 503, 4, CollimateDrainingError),
        ("session_bringup_failed", 500, 4, CollimateError),
        ("no_template", 404, 1, CollimateError),
        ("unauthorized", 401, 1, CollimateError),
    ],
)
def test_what_the_backend_refuses_is_raised(code: str, status: int, requests: int, raised: type[Exception]) -> None:
    provider, transport = refusing(code, status)
    with pytest.raises(raised) as caught:
        provider.start_container("coding-env")
    assert isinstance(caught.value, CollimateError)
    assert caught.value.error_code == code
    assert transport.requests == requests
    assert provider.session_id is None
    provider.stop_container()
    assert transport.requests == requests


def test_an_unauthorized_gateway_is_raised() -> None:
    transport = Refusing(401, b'{"code": "unauthorized", "message": "no such key"}')
    provider = CollimateProvider(client=GatewayClient("k", "http://gateway", transport=transport, sleep=lambda _: None))
    with pytest.raises(CollimateError) as caught:
        provider.start_container("coding-env")
    assert caught.value.error_code == "unauthorized"
    assert caught.value.is_misconfigured
    assert transport.requests == 1


def test_a_backend_that_is_down_is_raised() -> None:
    with ScriptedServer() as gone:
        url = gone.base_url
    client = CollimateClient(url, sleep=lambda _: None)
    with pytest.raises(UnreachableError):
        CollimateProvider(client=client).start_container("coding-env")


def test_a_client_of_the_callers_stays_open() -> None:
    class Client(CollimateClient):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    client = Client()
    CollimateProvider(client=client).close()
    assert client.closed == 0


def test_readiness_is_a_200_of_the_health_page(server: ScriptedServer) -> None:
    server.script = [hang_up, refuse(503, "loading"), answer({}, 404), answer({"status": "healthy"})]
    CollimateProvider().wait_for_ready(server.base_url)
    assert asked(server) == [("GET", "/health")] * 4


def test_a_server_that_never_is_ready_costs_its_session(server: ScriptedServer) -> None:
    with ScriptedServer() as environment:
        environment.default = refuse(503, "loading")
        place = environment.base_url.removeprefix("http://")
        server.script = [answer({**CREATED, "endpoints": {"8000": place}}, 201), answer(DELETED)]
        provider = CollimateProvider(server.base_url, ready_timeout=0.2)
        with pytest.raises(TimeoutError, match="status 503"):
            provider.wait_for_ready(provider.start_container("coding-env"))
        assert provider.session_id is None
        assert asked(server)[-1] == ("DELETE", "/v1/sessions/s1")
        provider.stop_container()
        assert len(server.requests) == 2


def test_a_server_that_answers_byte_by_byte_holds_nobody_up(server: ScriptedServer) -> None:
    server.default = drip(frame(b"{}" * 10_000), 0.01)
    with pytest.raises(TimeoutError, match=r"within 0\.3 s"):
        CollimateProvider(ready_timeout=0.3).wait_for_ready(server.base_url)


def test_an_address_that_cannot_be_costs_the_session_too(server: ScriptedServer) -> None:
    server.script = [answer({**CREATED, "endpoints": {"8000": "no port/at all"}}, 201), answer(DELETED)]
    provider = CollimateProvider(server.base_url)
    with pytest.raises(ValueError):
        provider.wait_for_ready(provider.start_container("coding-env"))
    assert asked(server)[-1] == ("DELETE", "/v1/sessions/s1")


def test_readiness_is_waited_for_within_its_time(server: ScriptedServer) -> None:
    """By a clock of the test's own: each pause is at most half a second, and the last question is before the end."""
    server.default = refuse(503, "loading")
    now = [0.0]
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    with pytest.raises(TimeoutError, match="within 5 s"):
        wait_until_healthy(server.base_url, 5, clock=lambda: now[0], sleep=sleep)
    assert sum(pauses) <= 5
    assert max(pauses) == 0.5
    assert len(server.requests) == len(pauses) + 1


def test_starts_and_stops_from_many_threads_leave_one_session_at_most(server: ScriptedServer) -> None:
    server.default = answer(CREATED, 201)
    provider = CollimateProvider(server.base_url)
    refused: list[CollimateError] = []

    def start() -> None:
        try:
            provider.start_container("coding-env")
        except CollimateError as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
    assert len(server.requests) == 1
