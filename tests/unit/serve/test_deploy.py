"""The systemd units, the Kubernetes Job and the proxy's Deployment: what they start exists, what they retry
is what a retry can mend, and they run without rights and on a read-only file system. The Containerfile's
steps are run in tests/acceptance/test_installed.py."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rekey.cli.main import rekey
from rekey.errors import ExitCode
from rekey.project.config import ProxyLimits
from rekey.serve.server import Address
from tests.repo.test_docs import commands, options_of

DEPLOY = Path(__file__).parents[3] / "deploy"
UNIT = DEPLOY / "rekey-apply.service"
PROXY = DEPLOY / "rekey-proxy.service"
WANT_A_PERSON = {ExitCode.FINDINGS, ExitCode.USAGE, ExitCode.REFUSED}


def unit(path: Path = UNIT) -> configparser.RawConfigParser:
    """Return a systemd unit; each of its keys stands in it once."""
    read = configparser.RawConfigParser(strict=True)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(path.read_text("utf-8"))
    return read


def job() -> dict[str, Any]:
    """Return the Kubernetes Job."""
    [only] = yaml.safe_load_all((DEPLOY / "job.yaml").read_text("utf-8"))
    return dict(only)


def exists(words: list[str]) -> bool:
    """Tell whether a command of rekey has these options."""
    return words[0] in rekey.list_commands(None) and set(words[1:]) <= options_of(dict(commands())[words[0]])  # type: ignore[arg-type]


def test_the_service_starts_a_command_that_is_there() -> None:
    program, *words = unit()["Service"]["ExecStart"].split()
    assert program == "/opt/rekey/bin/rekey"
    assert exists(words)


def test_the_service_retries_what_a_retry_can_mend() -> None:
    service = unit()["Service"]
    assert service["Restart"] == "on-failure"
    assert set(map(int, service["RestartPreventExitStatus"].split())) == WANT_A_PERSON
    assert int(service["SuccessExitStatus"]) == ExitCode.INTERRUPTED, "systemd stops it by SIGTERM"


def test_the_service_writes_to_the_project_alone() -> None:
    service = unit()["Service"]
    assert service["ProtectSystem"] == "strict"
    assert service["ReadWritePaths"] == service["WorkingDirectory"]
    assert service["User"] not in ("root", "0")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("path", [UNIT, PROXY])
def test_systemd_accepts_the_service_and_finds_it_well_confined(path: Path, tmp_path: Path) -> None:
    """With a program that exists; the exposure is systemd's own measure, of 10."""
    copy = tmp_path / path.name
    copy.write_text(path.read_text("utf-8").replace("/opt/rekey/bin/rekey", sys.executable), "utf-8")
    for words in (["verify"], ["security", "--offline=true", "--threshold=25"]):
        done = subprocess.run(["systemd-analyze", *words, copy], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert path.name not in done.stderr, done.stderr


def test_the_job_runs_one_command_that_is_there_without_rights() -> None:
    pod = job()["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert exists(container["args"])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_job_retries_what_a_retry_can_mend_one_at_a_time() -> None:
    spec = job()["spec"]
    assert (spec["parallelism"], spec["completions"]) == (1, 1), "there is one runner"
    [rule] = spec["podFailurePolicy"]["rules"]
    [container] = spec["template"]["spec"]["containers"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert (rule["onExitCodes"]["operator"], set(rule["onExitCodes"]["values"])) == ("In", WANT_A_PERSON)
    assert spec["template"]["spec"]["restartPolicy"] == "Never", "what such a policy asks for"


def test_the_job_mounts_what_the_container_writes_to_and_its_user_is_the_images() -> None:
    steps = (DEPLOY / "Containerfile").read_text("utf-8").splitlines()
    pod = job()["spec"]["template"]["spec"]
    [container] = pod["containers"]
    mounted = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    assert set(mounted) == {"/srv/rekey", "/tmp"}  # noqa: S108 - the container's
    assert set(mounted.values()) == {one["name"] for one in pod["volumes"]}
    user, group = pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]
    assert f"USER {user}:{group}" in steps
    assert "VOLUME /srv/rekey" in steps


# --- the proxy ----------------------------------------------------------------------------------------------


def test_the_proxys_service_reads_the_project_and_ends_in_order() -> None:
    """It is started again whatever ends it, but a mistake of the configuration; there is time for its end."""
    service, limits = unit(PROXY)["Service"], ProxyLimits()
    program, *words = service["ExecStart"].split()
    assert program == "/opt/rekey/bin/rekey"
    assert exists(words[:2])
    assert (service["Restart"], int(service["RestartPreventExitStatus"])) == ("always", ExitCode.USAGE)
    assert int(service["TimeoutStopSec"].removesuffix("s")) > limits.drain_s + limits.request_s
    assert service["KillMode"] == "mixed", "its children are told by it"
    assert service["ProtectSystem"] == "strict"
    assert "ReadWritePaths" not in service


def test_the_proxys_deployment_keeps_two_while_one_is_restarted() -> None:
    deployment, service = yaml.safe_load_all((DEPLOY / "proxy.yaml").read_text("utf-8"))
    spec, limits = deployment["spec"], ProxyLimits()
    assert spec["replicas"] - spec["strategy"]["rollingUpdate"]["maxUnavailable"] >= 2
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    assert exists(container["args"])
    assert pod["terminationGracePeriodSeconds"] > limits.drain_s + limits.request_s
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {
        name: Address.of(where).port for name, where in (("tables", limits.listen), ("admin", limits.admin))
    }
    for probe, path in (("livenessProbe", "liveness"), ("readinessProbe", "readiness")):
        assert container[probe]["httpGet"] == {"path": f"/health/{path}", "port": "admin"}
    assert service["spec"]["selector"] == spec["template"]["metadata"]["labels"]
    assert {one["name"] for one in pod["volumes"]} == {one["name"] for one in container["volumeMounts"]}
