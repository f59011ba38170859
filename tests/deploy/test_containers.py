"""Dockerfile, compose file and the configuration of Prometheus and Grafana fit together."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from kubernetes_validate import validate
from series import DEPLOY, ROOT

from gamaneh.cli.main import app
from gamaneh.models.catalogue import names
from gamaneh.models.fetch import CACHE_VARIABLE
from gamaneh.server.server_options import ServerOptions

KUBERNETES = DEPLOY / "kubernetes"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """Instruction and argument of each line of the Dockerfile, continued lines joined."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split()[0], line.partition(" ")[2]) for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def last_stage(instructions: list[tuple[str, str]]) -> list[tuple[str, str]]:
    start = max(at for at, (name, _) in enumerate(instructions) if name == "FROM")
    return instructions[start:]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = load(DEPLOY / "compose.yaml")
    return loaded


def argument(instructions: list[tuple[str, str]], name: str) -> str:
    (found,) = [argument for instruction, argument in instructions if instruction == name]
    return found


class TestImage:
    def test_all_stages_begin_with_one_slim_python_pinned_by_digest(self, instructions: list[tuple[str, str]]) -> None:
        (stage,) = {argument.split()[0] for name, argument in instructions if name == "FROM"}
        assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+@sha256:[0-9a-f]{64}", stage)

    def test_it_does_not_run_as_root(self, last_stage: list[tuple[str, str]]) -> None:
        user = argument(last_stage, "USER")
        assert int(user) > 0
        assert f"useradd --system --uid {user} --create-home gamaneh" in argument(last_stage, "RUN")

    def test_nothing_but_packages_is_fetched_while_it_is_built(self, instructions: list[tuple[str, str]]) -> None:
        commands = [argument for name, argument in instructions if name == "RUN"]
        assert not [command for command in commands if re.search(r"\b(curl|wget|git|gamaneh pull|apt-get)\b", command)]
        assert "ADD" not in {name for name, _ in instructions}

    def test_what_it_copies_exists_and_is_sent_to_the_builder(self, instructions: list[tuple[str, str]]) -> None:
        sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        for name, argument_ in instructions:
            if name == "COPY" and not argument_.startswith("--from"):
                for source in argument_.split()[:-1]:
                    assert (ROOT / source).exists()
                    assert f"!{source}" in sent

    def test_it_installs_extras_that_exist(self, instructions: list[tuple[str, str]]) -> None:
        command = next(argument for name, argument in instructions if name == "RUN" and "pip install" in argument)
        (extras,) = re.findall(r"'\.\[([\w,]+)\]'", command)
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        assert all(re.search(rf"^{extra} = \[", project, flags=re.MULTILINE) for extra in extras.split(","))

    def test_its_health_is_the_engines(self, last_stage: list[tuple[str, str]]) -> None:
        assert f"http://127.0.0.1:{ServerOptions().port}/health" in argument(last_stage, "HEALTHCHECK")
        assert argument(last_stage, "EXPOSE") == str(ServerOptions().port)

    def test_models_live_in_the_volume(self, last_stage: list[tuple[str, str]]) -> None:
        assert f"{CACHE_VARIABLE}={argument(last_stage, 'VOLUME')}" in argument(last_stage, "ENV")


class TestCompose:
    def test_there_are_a_server_prometheus_and_grafana(self, compose: dict[str, Any]) -> None:
        assert compose["services"].keys() == {"pull", "server", "prometheus", "grafana"}

    def test_it_passes_the_schema_of_compose(self) -> None:
        checked = subprocess.run(
            [
                sys.executable,
                "-m",
                "check_jsonschema",
                "--builtin-schema",
                "vendor.compose-spec",
                DEPLOY / "compose.yaml",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stdout

    def test_images_of_others_are_pinned_by_digest(self, compose: dict[str, Any]) -> None:
        for name in ("prometheus", "grafana"):
            assert re.search(r":v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}$", compose["services"][name]["image"])

    def test_mounted_files_exist_and_are_read_only(self, compose: dict[str, Any]) -> None:
        for service in compose["services"].values():
            for source, _, rest in (volume.partition(":") for volume in service["volumes"]):
                if source.startswith("."):
                    assert (DEPLOY / source).is_dir()
                    assert rest.endswith(":ro")

    def test_named_volumes_are_declared(self, compose: dict[str, Any]) -> None:
        volumes = [volume for service in compose["services"].values() for volume in service["volumes"]]
        named = {volume.partition(":")[0] for volume in volumes if not volume.startswith(".")}
        assert named == compose["volumes"].keys()

    def test_the_model_is_pulled_before_it_is_served(self, compose: dict[str, Any]) -> None:
        pull, server = compose["services"]["pull"], compose["services"]["server"]
        assert pull["command"][1] in server["command"]
        assert re.search(r":-([\w.-]+)\}", pull["command"][1])[1] in names()  # type: ignore[index]
        assert server["depends_on"]["pull"]["condition"] == "service_completed_successfully"

    def test_the_server_is_restarted_and_may_finish_first(self, compose: dict[str, Any]) -> None:
        server = compose["services"]["server"]
        assert server["restart"] == "unless-stopped"
        assert int(server["stop_grace_period"].removesuffix("s")) > ServerOptions().drain_seconds

    def test_nothing_listens_beyond_this_machine(self, compose: dict[str, Any]) -> None:
        ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
        assert ports
        assert all(port.startswith("127.0.0.1:") for port in ports)

    def test_no_password_has_a_default(self, compose: dict[str, Any]) -> None:
        assert ":?" in compose["services"]["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"]


class TestKubernetes:
    @pytest.fixture
    def resources(self) -> dict[str, dict[str, Any]]:
        """Resources by kind and name."""
        files = load(KUBERNETES / "kustomization.yaml")["resources"]
        found = [one for name in files for one in yaml.safe_load_all((KUBERNETES / name).read_text(encoding="utf-8"))]
        return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}

    @pytest.fixture
    def pod(self, resources: dict[str, dict[str, Any]]) -> dict[str, Any]:
        spec: dict[str, Any] = resources["StatefulSet/gamaneh"]["spec"]["template"]["spec"]
        return spec

    def test_all_resources_pass_the_schemas_strictly(self, resources: dict[str, dict[str, Any]]) -> None:
        for resource in resources.values():
            validate(resource, "1.37", strict=True)

    def test_no_file_is_left_out(self) -> None:
        listed = {*load(KUBERNETES / "kustomization.yaml")["resources"], "kustomization.yaml"}
        assert {path.name for path in KUBERNETES.iterdir()} == listed

    def test_the_model_is_pulled_before_it_is_served(self, pod: dict[str, Any]) -> None:
        pull, server = pod["initContainers"][0]["args"], pod["containers"][0]["args"]
        assert pull[0] == "pull"
        assert pull[1] in server
        assert pull[1] in names()

    def test_the_user_is_the_images(self, pod: dict[str, Any], last_stage: list[tuple[str, str]]) -> None:
        assert str(pod["securityContext"]["runAsUser"]) == argument(last_stage, "USER")

    def test_models_are_kept_by_each_replica(
        self, resources: dict[str, dict[str, Any]], pod: dict[str, Any], last_stage: list[tuple[str, str]]
    ) -> None:
        (claim,) = resources["StatefulSet/gamaneh"]["spec"]["volumeClaimTemplates"]
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounts[claim["metadata"]["name"]] == argument(last_stage, "VOLUME")

    def test_the_server_may_finish_first(self, pod: dict[str, Any]) -> None:
        assert pod["terminationGracePeriodSeconds"] > ServerOptions().drain_seconds

    def test_probes_ask_for_paths_that_are_served(self, pod: dict[str, Any]) -> None:
        server = pod["containers"][0]
        asked = {probe: server[probe]["httpGet"]["path"] for probe in server if probe.endswith("Probe")}
        assert asked == {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"}

    def test_the_service_finds_the_pods(self, resources: dict[str, dict[str, Any]]) -> None:
        labels = resources["StatefulSet/gamaneh"]["spec"]["template"]["metadata"]["labels"]
        for kind in ("Service/gamaneh", "Service/gamaneh-replicas"):
            assert resources[kind]["spec"]["selector"].items() <= labels.items()


class TestPrometheus:
    def test_it_scrapes_the_server(self, compose: dict[str, Any]) -> None:
        (job,) = load(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
        (target,) = job["static_configs"][0]["targets"]
        assert target == f"server:{ServerOptions().port}"
        assert target.partition(":")[0] in compose["services"]

    def test_its_rules_are_there(self) -> None:
        for name in load(DEPLOY / "prometheus" / "prometheus.yml")["rule_files"]:
            assert (DEPLOY / "prometheus" / name).is_file()


class TestGrafana:
    def test_its_source_is_the_prometheus_beside_it(self, compose: dict[str, Any]) -> None:
        (source,) = load(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
        assert re.fullmatch(r"http://(\w+):9090", source["url"])[1] in compose["services"]  # type: ignore[index]
        assert source["type"] == "prometheus"

    def test_it_finds_the_dashboard(self, compose: dict[str, Any]) -> None:
        (provider,) = load(DEPLOY / "grafana" / "provisioning" / "dashboards" / "gamaneh.yml")["providers"]
        mounts = dict(volume.split(":")[:2] for volume in compose["services"]["grafana"]["volumes"])
        folder = next(source for source, target in mounts.items() if target == provider["options"]["path"])
        assert (DEPLOY / folder / "gamaneh.json").is_file()


class TestCommands:
    @pytest.mark.parametrize("service", ["pull", "server"])
    def test_the_command_line_understands_the_compose_file(self, compose: dict[str, Any], service: str) -> None:
        words = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in compose["services"][service]["command"]]
        parse(words)

    def test_the_command_line_understands_the_image(self, last_stage: list[tuple[str, str]]) -> None:
        parse(json.loads(argument(last_stage, "CMD")))


def parse(words: list[str]) -> None:
    """Raises when the command or one of its options does not exist."""
    command, *arguments = words
    typer.main.get_group(app).commands[command].make_context(command, arguments)
