"""docs/deploy: what its files name of the code is there: flags, ports, paths, extras, exits."""

import configparser
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from specserve.api.http.app import make_app
from specserve.cli import build_parser
from specserve.commands.service_options import read_config
from specserve.processes.supervised_events import EXIT_REFUSED
from specserve.settings.config import Config, ServerConfig
from specserve.settings.hosts import check_hosts, port_of
from tests.architecture.sources import ROOT
from tests.docs.command_lines import problem
from tests.docs.shown import Command
from tests.docs.test_commands import FENCE

DEPLOY = ROOT / "docs" / "deploy"
PORTS = {ServerConfig().grpc_port, ServerConfig().http_port_wish}
PROBES = {"/livez", "/readyz"}


def launched(words: list[str]) -> Config:
    """What the words behind `specserve launch` configure; raises for one that is not known."""
    arguments, strays = build_parser().parse_known_args(["launch", *words])
    assert strays == []
    return read_config(arguments)


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


def kinds(name: str, kind: str) -> list[dict[str, Any]]:
    return [document for document in documents(name) if document["kind"] == kind]


def pod(name: str) -> dict[str, Any]:
    (workload,) = kinds(name, "StatefulSet" if "several" in name else "Deployment")
    template = workload["spec"]["template"]
    selected = workload["spec"]["selector"]["matchLabels"]
    assert selected.items() <= template["metadata"]["labels"].items()
    return template["spec"]


MANIFESTS = ["one-node.yaml", "several-nodes.yaml"]


def test_every_file_is_explained():
    page = (DEPLOY / "README.md").read_text()
    files = {path for path in DEPLOY.rglob("*") if path.is_file() and path.name != "README.md"}
    assert len(files) == 4
    assert {path for path in files if f"]({path.relative_to(DEPLOY)})" not in page} == set()


def test_commands_of_the_page_are_understood():
    page = (DEPLOY / "README.md").read_text()
    blocks = "\n".join(FENCE.findall(page))
    lines = re.findall(r"^specserve .*$", blocks, re.M)
    assert len(lines) == 5
    nodes, served = [], []
    for line in lines:
        program, *words = shlex.split(line, comments=True)
        assert problem(Command("docs/deploy/README.md", (program, *words))) is None
        if words[0] == "draft":
            places = words[words.index("--attach-to") + 1]
            assert places.split(",") == [topology.draft_address for topology in served]
            continue
        topology = launched(words[1:]).topology
        check_hosts(topology)
        if topology.draft_address is not None:
            served.append(topology)
            continue
        nodes.append((topology.node_rank, topology.nnodes, topology.rendezvous))
    assert [rank for rank, *_ in nodes] == [0, 1]
    assert len({each[1:] for each in nodes}) == 1


# --- the image -------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """Of the Containerfile: name and what follows, lines joined, comments left out."""
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", text)
    return [(line.split()[0], line.partition(" ")[2]) for line in joined.splitlines() if line]


def of(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def test_the_image_has_what_is_installed_and_nothing_that_is_not_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    copied = {word for rest in of("COPY") for word in rest.split()[:-1]}
    assert {name for name in copied if not (ROOT / name).exists()} == set()
    found = project["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {each.rstrip("*") for each in found}
    assert packages | {"pyproject.toml", project["project"]["readme"]} <= copied
    assert set(project["project"]["license-files"]) <= copied
    arguments = dict(rest.partition("=")[::2] for rest in of("ARG"))
    page = (DEPLOY / "Containerfile").read_text() + (DEPLOY / "README.md").read_text()
    extras = {arguments["EXTRAS"], *re.findall(r"EXTRAS=([\w,]+)", page)}
    known = project["project"]["optional-dependencies"]
    assert {name for each in extras for name in each.split(",")} <= known.keys()
    for name in {arguments["CONSTRAINTS"], *re.findall(r"CONSTRAINTS=(\w+)", page)}:
        assert (ROOT / "constraints" / f"{name}.txt").is_file()
    assert arguments["MODEL"] in (ROOT / "Makefile").read_text()
    (base,) = of("FROM")
    version = re.search(r"python:3\.(\d+)", base)
    assert version
    assert int(version[1]) >= int(project["project"]["requires-python"].rpartition(".")[2])


def test_the_image_serves_who_has_a_key_on_the_usual_ports():
    (entry,), (command,) = of("ENTRYPOINT"), of("CMD")
    words = [*yaml.safe_load(entry), *yaml.safe_load(command)]
    assert words[:2] == ["specserve", "launch"]
    config = launched(words[2:])
    assert config.server.host == "0.0.0.0"
    assert config.server.api_key_file
    assert {int(port) for port in of("EXPOSE")[0].split()} == PORTS
    assert of("STOPSIGNAL") == ["SIGTERM"]
    last_user = [rest for name, rest in instructions() if name == "USER"][-1]
    assert int(last_user) > 0


# --- systemd ---------------------------------------------------------------------------------


def unit() -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment]
    found.read(DEPLOY / "specserve.service")
    return found


def test_the_unit_launches_with_flags_that_there_are_and_waits_for_a_drain():
    service = unit()["Service"]
    program, command, *words = shlex.split(service["ExecStart"])
    assert (Path(program).name, command) == ("specserve", "launch")
    config = launched(words)
    assert config.server.api_key_file
    assert int(service["TimeoutStopSec"]) >= config.server.drain_timeout_s + 20
    assert int(service["RestartPreventExitStatus"]) == EXIT_REFUSED
    assert service["KillSignal"] == "SIGTERM"
    assert service["Restart"] == "on-failure"
    documentation = unit()["Unit"]["Documentation"].rpartition("/opt/specserve/")[2]
    assert (ROOT / documentation).is_file()
    shown = re.search(r"--nnodes .*?--private-network", (DEPLOY / "specserve.service").read_text())
    assert shown
    check_hosts(launched(shown[0].split()).topology)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    text = (DEPLOY / "specserve.service").read_text()
    here = tmp_path / "specserve.service"
    # The program, and whoever runs it, are on the machine that it is copied to.
    here.write_text(re.sub(r"/opt/specserve/.venv/bin/specserve", "/bin/true", text))
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(here)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert [line for line in told.stderr.splitlines() if "specserve.service" in line] == []


# --- Kubernetes ------------------------------------------------------------------------------


def routes() -> set[str]:
    source = Path(make_app.__code__.co_filename).read_text()
    return set(re.findall(r'_answers\("(/\w+)"', source))


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_launch_with_flags_that_there_are(name: str):
    (container,) = pod(name)["containers"]
    ranked = [word.replace("$(NODE_RANK)", "1") for word in container["args"]]
    config = launched(ranked)
    assert config.server.api_key_file
    assert config.server.host == "0.0.0.0"
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert any(config.server.api_key_file.startswith(f"{mount}/") for mount in mounts)
    assert of("VOLUME")[0] in mounts
    volumes = {volume["name"] for volume in pod(name)["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    drain_s = config.server.drain_notice_s + config.server.drain_timeout_s
    assert pod(name)["terminationGracePeriodSeconds"] >= drain_s + 10
    assert pod(name)["securityContext"]["runAsUser"] == int(of("USER")[-1])


@pytest.mark.parametrize("name", MANIFESTS)
def test_ports_and_probes_are_those_of_the_service(name: str):
    (container,) = pod(name)["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {ports["grpc"], ports["http"]} == PORTS
    for service in kinds(name, "Service"):
        for port in service["spec"]["ports"]:
            assert port["port"] == ports[port["name"]]
            assert port.get("targetPort", port["name"]) in ports
    probes = [probe for key, probe in container.items() if key.endswith("Probe")]
    assert probes
    asked = set(re.findall(r"/(?:livez|readyz|health)\b", str(probes)))
    assert asked <= PROBES
    assert "/readyz" in asked
    assert asked <= routes()
    for probe in probes:
        if "httpGet" in probe:
            assert ports[probe["httpGet"]["port"]] == ports["http"]


def test_pods_of_several_nodes_meet_where_the_first_one_is():
    name = "several-nodes.yaml"
    (workload,), spec = kinds(name, "StatefulSet"), pod(name)
    (container,) = spec["containers"]
    for rank in range(workload["spec"]["replicas"]):
        words = [word.replace("$(NODE_RANK)", str(rank)) for word in container["args"]]
        topology = launched(words).topology
        check_hosts(topology)
        assert (topology.node_rank, topology.nnodes) == (rank, workload["spec"]["replicas"])
    assert topology.private_network
    host = topology.rendezvous.partition(":")[0]
    assert host == f"{workload['metadata']['name']}-0.{workload['spec']['serviceName']}"
    (headless,) = [s for s in kinds(name, "Service") if s["spec"].get("clusterIP") == "None"]
    assert headless["metadata"]["name"] == workload["spec"]["serviceName"]
    assert headless["spec"]["publishNotReadyAddresses"]  # they meet before they are ready
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert port_of(topology) == ports["rendezvous"]
    (policy,) = kinds(name, "NetworkPolicy")
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    among, others = policy["spec"]["ingress"]
    assert among["from"][0]["podSelector"]["matchLabels"] == labels
    assert {port["port"] for port in others["ports"]} == {"grpc", "http"}
