"""The systemd unit and the Kubernetes Job: what they start exists, what they retry is what a retry can mend,
and they run without rights and on a read-only file system. The Containerfile's steps are run in
tests/acceptance/test_installed.py."""

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
from tests.test_docs import commands, options_of

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "rekey-apply.service"
WANT_A_PERSON = {ExitCode.FINDINGS, ExitCode.USAGE, ExitCode.REFUSED}


def unit() -> configparser.RawConfigParser:
    """Return the systemd unit; each of its keys stands in it once."""
    read = configparser.RawConfigParser(strict=True)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(UNIT.read_text("utf-8"))
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
def test_systemd_accepts_the_service_and_finds_it_well_confined(tmp_path: Path) -> None:
    """With a program that exists; the exposure is systemd's own measure, of 10."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text("utf-8").replace("/opt/rekey/bin/rekey", sys.executable), "utf-8")
    for words in (["verify"], ["security", "--offline=true", "--threshold=25"]):
        done = subprocess.run(["systemd-analyze", *words, copy], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert UNIT.name not in done.stderr, done.stderr


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
