"""The manifests for Kubernetes: valid by its schemas, and in agreement with each other and with the product."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deploy.places import KUBERNETES, METRICS_PORT, NODE_PORT, ROOT, options_of, read, used_options
from kit.support import TOKEN
from unbroken import __version__
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unbroken.transport.auth import read_token

VERSIONS = ("1.30", "1.33")
"""Two years of releases; the fields used here are older."""

LABEL = "app.kubernetes.io/name"
NAMES = ("service", "statefulset", "poddisruptionbudget", "networkpolicy")


@pytest.fixture(scope="module")
def kustomization() -> dict[str, Any]:
    return read("kustomization")


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    template: dict[str, Any] = read("statefulset")["spec"]["template"]
    return template


@pytest.fixture(scope="module")
def node(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    found: dict[str, Any] = container
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_manifests_are_valid(name: str, version: str) -> None:
    kubernetes_validate.validate(read(name), version, strict=True)


def test_all_files_are_used(kustomization: dict[str, Any]) -> None:
    assert {path.stem for path in KUBERNETES.glob("*.yaml")} - {"kustomization"} == set(NAMES)
    assert kustomization["resources"] == [f"{name}.yaml" for name in NAMES]
    named = [file for each in kustomization["configMapGenerator"] for file in each.get("files", [])]
    assert {path.name for path in KUBERNETES.glob("*.py")} == set(named)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_puts_them_together() -> None:
    built = subprocess.run(["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr
    found = list(yaml.safe_load_all(built.stdout))
    for document in found:
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
        assert document["metadata"]["namespace"] == "clicks"
    assert sum(document["kind"] == "ConfigMap" for document in found) == 2


def test_selectors_find_the_pods(pod: dict[str, Any]) -> None:
    (name,) = {pod["metadata"]["labels"][LABEL]}
    wanted = {LABEL: name}
    stateful, budget, policy = read("statefulset"), read("poddisruptionbudget"), read("networkpolicy")
    assert stateful["spec"]["selector"]["matchLabels"] == wanted
    assert budget["spec"]["selector"]["matchLabels"] == wanted
    assert policy["spec"]["podSelector"]["matchLabels"] == wanted
    assert read("service")["spec"]["selector"] == wanted
    assert stateful["spec"]["serviceName"] == read("service")["metadata"]["name"]
    (rule,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == wanted
    assert rule["topologyKey"] == "kubernetes.io/hostname"


def test_ports_agree(node: dict[str, Any], pod: dict[str, Any]) -> None:
    wanted = {"node": NODE_PORT, "metrics": METRICS_PORT}
    assert {port["name"]: port["containerPort"] for port in node["ports"]} == wanted
    assert {port["targetPort"]: port["port"] for port in read("service")["spec"]["ports"]} == wanted
    assert {f"--port={NODE_PORT}", f"--metrics-port={METRICS_PORT}"} <= set(node["args"])
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(METRICS_PORT)
    rules = read("networkpolicy")["spec"]["ingress"]
    assert [port["port"] for rule in rules for port in rule["ports"]] == [NODE_PORT, METRICS_PORT]


@pytest.mark.parametrize(("probe", "path"), [("startup", "/live"), ("liveness", "/live"), ("readiness", "/ready")])
def test_probes_ask_what_a_node_answers(node: dict[str, Any], probe: str, path: str) -> None:
    asked = node[f"{probe}Probe"]["httpGet"]
    assert asked == {"path": path, "port": "metrics"}
    source = (ROOT / "src" / "unbroken" / "observe" / "metrics" / "server.py").read_text()
    assert f'case "{path}":' in source


def test_the_command_has_options_that_exist(node: dict[str, Any]) -> None:
    name, *words = node["args"]
    assert set(used_options(words)) <= options_of(name)
    assert {"--name", "--flow", "--zookeeper", "--host", "--dir", "--token-file"} <= set(used_options(words))
    assert "command" not in node, "the image says how the program is started"


def scripts(pod: dict[str, Any], node: dict[str, Any]) -> dict[str, str]:
    (first,) = pod["spec"]["initContainers"]
    *_, stop = node["lifecycle"]["preStop"]["exec"]["command"]
    return {"start": first["args"][0], "stop": stop}


@pytest.mark.parametrize("when", ["start", "stop"])
def test_a_node_is_drained_when_it_stops_and_used_again_when_it_starts(
    pod: dict[str, Any], node: dict[str, Any], when: str
) -> None:
    script = scripts(pod, node)[when]
    program, name, *words = script.removesuffix(" || true").split()
    assert (program, name) == ("unbroken", "drain")
    assert ("--undo" in words) == (when == "start")
    assert words[:2] == ['"$POD_NAME"', '"$FLOW"']
    assert set(used_options(words)) <= options_of("drain")
    assert "$(" not in script, "Kubernetes fills in such names in args, but not in commands of hooks"


def test_there_is_time_to_be_drained(pod: dict[str, Any], node: dict[str, Any]) -> None:
    wait = re.search(r"--wait (\d+)", scripts(pod, node)["stop"])
    assert wait is not None
    assert pod["spec"]["terminationGracePeriodSeconds"] >= int(wait[1]) + 60, "and then to end"


def test_names_that_commands_use_are_set(pod: dict[str, Any], node: dict[str, Any], kustomization: Any) -> None:
    settings = next(each for each in kustomization["configMapGenerator"] if "literals" in each)
    given = {text.partition("=")[0] for text in settings["literals"]}
    (first,) = pod["spec"]["initContainers"]
    for container in (node, first):
        assert [source["configMapRef"]["name"] for source in container["envFrom"]] == [settings["name"]]
        known = given | {variable["name"] for variable in container["env"]}
        used = re.findall(r"\$[({]?(\w+)", " ".join([*container["args"], *scripts(pod, node).values()]))
        assert set(used) <= known


def test_every_path_is_mounted(pod: dict[str, Any], node: dict[str, Any], kustomization: Any) -> None:
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    claims = {claim["metadata"]["name"] for claim in read("statefulset")["spec"]["volumeClaimTemplates"]}
    (first,) = pod["spec"]["initContainers"]
    for container in (node, first):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes | claims
        assert container["securityContext"]["readOnlyRootFilesystem"]
    places = {mount["mountPath"]: mount for mount in node["volumeMounts"]}
    given = dict(word.removeprefix("--").partition("=")[::2] for word in node["args"][1:])
    assert given["dir"].startswith("/var/lib/unbroken/"), "below the mount: a fresh disk may hold lost+found"
    assert places["/var/lib/unbroken"]["name"] in claims
    assert given["token-file"] == "/run/unbroken/token" and places["/run/unbroken"]["readOnly"]
    literals = dict(text.split("=", 1) for text in kustomization["configMapGenerator"][0]["literals"])
    files = kustomization["configMapGenerator"][1]["files"]
    assert literals["FLOW_FILE"] in {f"/etc/unbroken/flow/{name}" for name in files}
    assert "/etc/unbroken/flow" in places and "/tmp" in places


def test_config_maps_and_secrets_have_the_names_that_pods_ask_for(pod: dict[str, Any], kustomization: Any) -> None:
    made = {each["name"]: each for each in kustomization["configMapGenerator"]}
    assert kustomization["generatorOptions"]["disableNameSuffixHash"]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert made[volumes["flow"]["configMap"]["name"]]["options"]["immutable"]
    secret = volumes["token"]["secret"]["secretName"]
    assert f"create secret generic {secret} --from-literal=token=" in (KUBERNETES / "kustomization.yaml").read_text()


def test_the_example_is_a_flow_for_these_nodes(kustomization: dict[str, Any]) -> None:
    literals = dict(text.split("=", 1) for text in kustomization["configMapGenerator"][0]["literals"])
    flow = load_flow(KUBERNETES / "clicks.py")
    topology = build_topology(flow)
    count = read("statefulset")["spec"]["replicas"]
    assert flow.name == literals["FLOW"] == kustomization["namespace"]
    assert flow.settings.nodes == count
    assert count > max(topology.replicas.values()), "one more, so that a node can be drained"


def test_all_nodes_may_start_at_once_and_one_may_be_taken() -> None:
    assert read("statefulset")["spec"]["podManagementPolicy"] == "Parallel"
    assert read("poddisruptionbudget")["spec"]["maxUnavailable"] == 1
    assert read("service")["spec"]["publishNotReadyAddresses"] and read("service")["spec"]["clusterIP"] == "None"


def test_nothing_runs_as_root(pod: dict[str, Any], node: dict[str, Any]) -> None:
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    assert not node["securityContext"]["allowPrivilegeEscalation"]
    assert node["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert not pod["spec"]["automountServiceAccountToken"]


def test_the_image_is_this_version(kustomization: dict[str, Any], node: dict[str, Any]) -> None:
    (image,) = kustomization["images"]
    assert node["image"] == image["name"]
    assert image["newTag"] == __version__


def test_a_token_may_end_with_a_line_break(tmp_path: Any) -> None:
    """What people put into a Secret or a file."""
    (tmp_path / "token").write_text(f"{TOKEN}=\n")
    assert read_token(tmp_path / "token") == f"{TOKEN}="
