"""deploy/kubernetes: the manifests keep to Kubernetes' schemas, fit together, and start what there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.acl_users import USERS
from tests.fixtures.deployments import DEPLOY, parsed, settings

FOLDER = DEPLOY / "kubernetes"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text(encoding="utf-8"))
VERSIONS = ("1.33", "1.34")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(FILES[name].read_text(encoding="utf-8")))


def everything() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in FILES:
        for document in documents(name):
            yield name, document


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod's spec, by file and kind."""
    for name, document in everything():
        if "template" in document.get("spec", {}):
            yield f"{name}/{document['kind']}", document["spec"]["template"]["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


PODS = dict(pods())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FILES)
def test_it_keeps_to_the_schemas(name: str, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate in this environment")
    found = documents(name)
    assert found
    for document in found:
        assert validate.validate(document, version, strict=True)
    wrong = {**found[0], "metadata": {"name": 5}}
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, version, strict=True)


def test_the_kustomization_names_what_there_is() -> None:
    for resource in KUSTOMIZATION["resources"]:
        assert (DEPLOY / resource).is_file()
    used = {Path(resource).stem for resource in KUSTOMIZATION["resources"]}
    assert used == set(FILES) - {"worker-local-daemon"}
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    sources = {file.rpartition("=")[2] for file in generated["files"]}
    assert all((DEPLOY / source).is_file() for source in sources)
    keys = {file.partition("=")[0] if "=" in file else Path(file).name for file in generated["files"]}
    assert keys == {"redis.conf", "redis-here.conf", "users.acl.in", "render-acl.sh"}
    volumes = {volume["name"]: volume for volume in PODS["redis/StatefulSet"]["volumes"]}
    assert volumes["config"]["configMap"]["name"] == generated["name"]


@pytest.mark.parametrize("name", PODS)
def test_no_pod_has_rights_that_it_does_not_need(name: str) -> None:
    pod = PODS[name]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    for container in containers(pod):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in context
        assert "memory" in container["resources"]["limits"]
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        opened = {"procMount", "seccompProfile", "appArmorProfile"} & set(context)
        assert bool(opened) is (container["name"] == "sandboxd")
        if opened:
            assert pod["hostUsers"] is False  # else procMount is refused
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("name", PODS)
def test_what_is_mounted_is_a_volume_of_the_pod(name: str) -> None:
    pod = PODS[name]
    volumes = {volume["name"] for volume in pod["volumes"]}
    volumes |= {"data"} if name == "redis/StatefulSet" else set()
    mounted = {mount["name"] for container in containers(pod) for mount in container["volumeMounts"]}
    assert mounted == volumes
    host = [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume]
    assert host == (["/run/collimate-session"] if name == "worker/DaemonSet" else [])


def environ(container: dict[str, Any]) -> dict[str, str]:
    told = {}
    for item in container.get("env", ()):
        value = item.get("value", "x")
        for name, known in told.items():
            value = value.replace(f"$({name})", known)
        told[item["name"]] = value
    return told


@pytest.mark.parametrize("name", ["worker/DaemonSet", "worker-local-daemon/DaemonSet", "dashboard/Deployment"])
def test_a_pods_command_is_one_of_ours_and_reaches_the_server(name: str) -> None:
    pod = PODS[name]
    (container,) = pod["containers"]
    options = parsed(container["args"])
    told = settings(options, environ(container)).settings
    user = "dashboard" if name.startswith("dashboard") else "worker"
    host = "collimate-redis.collimate.svc" if "local" in name else "collimate-redis"
    assert told.redis_url == f"rediss://{user}:x@{host}:6379/0?ssl_ca_certs=/etc/collimate/ca.crt"
    secret = next(item for item in container["env"] if item["name"] == "REDIS_PASSWORD")
    assert secret["valueFrom"]["secretKeyRef"] == {"name": "collimate-redis-passwords", "key": user}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert [item["key"] for item in volumes["redis-ca"]["secret"]["items"]] == ["ca.crt"]
    port = int(str(options["port"])) if user == "dashboard" else told.metrics_port
    (exposed,) = container["ports"]
    assert exposed["containerPort"] == port
    for probe in ("livenessProbe", "readinessProbe"):
        ready = probe == "readinessProbe" and user == "worker"
        assert container[probe]["httpGet"] == {"path": "/readyz" if ready else "/healthz", "port": exposed["name"]}


@pytest.mark.parametrize("name", ["worker/DaemonSet", "worker-local-daemon/DaemonSet"])
def test_a_worker_has_its_daemons_socket_and_time_to_stop(name: str) -> None:
    pod = PODS[name]
    (container,) = pod["containers"]
    told = settings(parsed(container["args"]), environ(container)).settings
    assert pod["terminationGracePeriodSeconds"] >= told.grace + 18
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert told.state_dir in mounts
    folder = told.backend.removeprefix("unix:").rpartition("/")[0]
    assert folder in mounts
    if "local" in name:
        (daemon,) = pod["initContainers"]
        options = parsed(daemon["args"])
        assert told.backend == f"unix:{options['socket']}"
        assert (daemon["restartPolicy"], options["socket_mode"]) == ("Always", "660")
        assert daemon["securityContext"]["runAsUser"] != pod["securityContext"]["runAsUser"]


def test_the_server_is_one_with_its_data_and_every_password() -> None:
    (server,) = [document for document in documents("redis") if document["kind"] == "StatefulSet"]
    assert server["spec"]["replicas"] == 1
    assert server["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "data"
    users, redis = containers(PODS["redis/StatefulSet"])
    for script in ("render-acl.sh", "users.acl.in"):
        assert f"/etc/redis/{script}" in users["args"][0]
    assert redis["command"] == ["redis-server", "/etc/redis/redis-here.conf"]
    text = (DEPLOY.parent / "docs/howto/kubernetes.md").read_text(encoding="utf-8")
    assert all(f" {user}" in text for user in USERS)
    told = redis["readinessProbe"]["exec"]["command"][-1]
    assert "--user probe" in told
    assert "grep -q PONG" in told


def test_policies_and_budgets_are_about_pods_that_there_are() -> None:
    labels = [
        document["spec"]["template"]["metadata"]["labels"]
        for _, document in everything()
        if "template" in document.get("spec", {})
    ]
    components = {each["app.kubernetes.io/component"] for each in labels}
    seen = set()
    for _, document in everything():
        if document["kind"] not in ("NetworkPolicy", "PodDisruptionBudget"):
            continue
        selector = document["spec"].get("podSelector") or document["spec"].get("selector") or {}
        wanted = selector.get("matchLabels")
        assert wanted is None or wanted in labels
        seen.add(wanted["app.kubernetes.io/component"] if wanted else "")
        for expression in selector.get("matchExpressions", ()):
            assert set(expression["values"]) <= components
    assert seen == {"", *components}
    (deny,) = [d for _, d in everything() if d["kind"] == "NetworkPolicy" and d["metadata"]["name"] == "collimate-deny"]
    assert deny["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
