"""What users' CI runs: the steps of the GitHub action and of the Azure Pipelines template, and the hook for
pre-commit, by the shells that the hosts start, in a project made by `rekey init`. The command is forked (see
`forking`), but where it is shown what is imported.

Stood in for are the host's own parts alone: its expressions and variables, the package index, the step that
keeps files, and its address for comments.

Soak: a rehearsal on each host; what both hosts run alike, on the second one.
Reason, and what `make test` covers: minutes; the same step with a script that cannot be rehearsed, and
rehearsals in `test_rehearse.py`; the first host.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from azure.data.tables import TableServiceClient

from rekey.cli.main import run
from tests.asserts.documents import UsualAzurite
from tests.worlds.azurite_projects import command
from tests.worlds.forking import rekey_for_a_shell

pytestmark = [pytest.mark.azurite, pytest.mark.xdist_group("ci")]
ROOT = Path(__file__).parents[2]
ADDRESS = "https://host.example/artifacts/7"
PYTHON = """#!/bin/sh
case "$1 $2 $3" in
"-I -m venv") mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; ln -sf {rekey} "$4/bin/rekey" ;;
"-I -m pip") shift 3; echo "$*" > "$INSTALLED" ;;
"-I "*) exec {python} "$@" ;;
*) echo "imports from the folder of the pull request: $*" >&2; exit 97 ;;
esac
"""
SCRIPT = (ROOT / "migrations/0001_users_opaque_ids.py").read_text("utf-8")
UNSERVED = SCRIPT.replace("import Migration", "import query, Migration").replace(
    "    capture=", '    queries=[query.range("RowKey", within=["PartitionKey"])],\n    capture='
)


MARKER = "<!-- rekey tables -->\n"
OWN = "the build's own"
STRANGERS = ["of somebody else", f"{MARKER}written by somebody else"]


class Api(BaseHTTPRequestHandler):
    """The comments of a pull request, as both hosts keep them; strangers wrote the first ones, one with
    the action's marker."""

    def do_GET(self) -> None:
        """List comments, with their authors."""
        if self.path.endswith("/_apis/connectionData"):
            return self._answer({"authenticatedUser": {"id": OWN}})
        threads = [
            {"id": n, "comments": [{"id": 1, "content": text, "author": {"id": self._author(n)}}]}
            for n, text in enumerate(self.server.comments)  # type: ignore[attr-defined]
        ]
        empty = {"id": 90, "comments": [{"id": 1, "author": {"id": OWN}}]}
        return self._answer({"value": [empty, *threads]})

    @staticmethod
    def _author(number: int) -> str:
        return "a stranger" if number < len(STRANGERS) else OWN

    def do_POST(self) -> None:
        """Add a comment, or a file; or list comments, one a page, as GraphQL does."""
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        comments = self.server.comments  # type: ignore[attr-defined]
        if self.path == "/graphql":
            asked = json.loads(sent)["variables"]
            assert (asked["owner"], asked["name"], asked["number"]) == ("owner", "tables", 5)
            n = int(asked["after"] or 0)
            mine = self._author(n) == OWN
            nodes = [{"databaseId": n, "body": text, "viewerDidAuthor": mine} for text in comments[n : n + 1]]
            info = {"hasNextPage": n + 1 < len(comments), "endCursor": str(n + 1)}
            page = {"comments": {"nodes": nodes, "pageInfo": info}}
            return self._answer({"data": {"repository": {"pullRequest": page}}})
        if "/attachments/" in self.path:
            self.server.attached[self.path] = sent  # type: ignore[attr-defined]
            return self._answer({"url": "https://host.example/plan.html"})
        body = json.loads(sent)
        comments.append(body["body"] if "body" in body else body["comments"][0]["content"])
        return self._answer({})

    def do_PATCH(self) -> None:
        """Change a comment."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = re.search(r"comments/(\d+)$|threads/(\d+)/comments/1\?", self.path)
        assert number is not None
        self.server.comments[int(number[1] or number[2])] = body.get("body") or body["content"]  # type: ignore[attr-defined]
        self._answer({})

    def _answer(self, document: Any) -> None:
        allowed = self.headers["Authorization"] == "Bearer t0ken"
        self.send_response(200 if allowed else 403)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@dataclass
class Host:
    """A job of a host: runs the steps, as far as they are shell, with the files and variables of the host."""

    folder: Path
    project: Path
    api: ThreadingHTTPServer
    rekey: str
    environment: dict[str, str] = field(default_factory=dict)
    said: str = ""

    @property
    def out(self) -> Path:
        """What is kept as an artifact."""
        return self.folder / "temp/rekey-out"

    @property
    def comments(self) -> list[str]:
        """The comments of the pull request."""
        return list(self.api.comments)  # type: ignore[attr-defined]

    def begin(self, **variables: str) -> None:
        """Begin a job anew."""
        (self.folder / "temp").mkdir(exist_ok=True)
        programs = self.folder / "programs"
        programs.mkdir(exist_ok=True)
        stand_in = PYTHON.format(rekey=self.rekey, python=sys.executable)
        (programs / "python").write_text(stand_in, "utf-8")
        (programs / "python").chmod(0o755)
        self.environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": os.environ["HOME"],
            "INSTALLED": str(self.folder / "installed"),
            **{
                name: value
                for name, value in os.environ.items()
                if name in ("REKEY_AZURITE_DIR", "PYTHONPATH")
            },
            **variables,
        }
        self.said = ""

    def shell(self, text: str, folder: str, variables: Mapping[str, str], *options: str) -> int:
        """Run a step; return its exit code."""
        script = self.folder / "step.sh"
        script.write_text(text, "utf-8")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", *options, script],
            cwd=self.project / folder,
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            check=False,
        )
        self.said += done.stdout
        return done.returncode


class GitHub(Host):
    """Runs the composite action."""

    def run(self, **inputs: str) -> int:
        """Run it for pull request 5; return the exit code of the step that ended it, or 0."""
        action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
        address = f"http://127.0.0.1:{self.api.server_address[1]}"
        for name in ("path", "summary"):
            (self.folder / name).write_text("", "utf-8")
        self.begin(
            RUNNER_TEMP=str(self.folder / "temp"),
            GITHUB_ACTION_PATH=str(ROOT),
            GITHUB_PATH=str(self.folder / "path"),
            GITHUB_STEP_SUMMARY=str(self.folder / "summary"),
            GITHUB_API_URL=address,
            GITHUB_GRAPHQL_URL=f"{address}/graphql",
            GITHUB_REPOSITORY="owner/tables",
        )
        known = {f"inputs.{name}": str(one.get("default", "")) for name, one in action["inputs"].items()}
        known |= {f"inputs.{name}": value for name, value in inputs.items()}
        known |= {
            "runner.temp": str(self.folder / "temp"),
            "github.token": "t0ken",
            "github.event.pull_request.number": "5",
        }

        def filled(text: str) -> str:
            while "${{" in text:
                text = re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: known[found[1]], text)
            return text

        for step in action["runs"]["steps"]:
            if "if" in step:
                name, wanted = re.fullmatch(r"([\w.]+) == '(\w+)'", step["if"]).groups()  # type: ignore[union-attr]
                if known[name] != wanted:
                    continue
            if step.get("uses", "").startswith("actions/upload-artifact@"):
                assert Path(filled(step["with"]["path"])) == self.out and list(self.out.iterdir())
                known[f"steps.{step['id']}.outputs.artifact-url"] = ADDRESS
            if "run" not in step:
                continue
            assert step["shell"] == "bash" and "${{" not in step["run"], "an input is no part of a program"
            variables = {name: filled(value) for name, value in step.get("env", {}).items()}
            code = self.shell(
                step["run"], filled(step.get("working-directory", ".")), variables, "-eo", "pipefail"
            )
            added = (self.folder / "path").read_text("utf-8").split()
            self.environment["PATH"] = ":".join([*reversed(added), f"{self.folder}/programs:/usr/bin:/bin"])
            if code:
                return code
        return 0


class AzurePipelines(Host):
    """Runs the template, with or without a service connection."""

    def run(self, **given: str) -> int:
        """Run it for pull request 5; return the exit code of the step that ended it, or 0."""
        template = yaml.safe_load((ROOT / "deploy/azure-pipelines.yml").read_text("utf-8"))
        temp = self.folder / "temp"
        self.begin(
            AGENT_TEMPDIRECTORY=str(temp),
            SYSTEM_COLLECTIONURI=f"http://127.0.0.1:{self.api.server_address[1]}/org/",
            SYSTEM_TEAMPROJECTID="p",
            SYSTEM_PULLREQUEST_PULLREQUESTID="5",
            BUILD_REPOSITORY_ID="r",
            BUILD_REPOSITORY_PROVIDER="TfsGit",
            BUILD_BUILDID="77",
        )
        # A boolean is spelled `True` there.
        known = {f"parameters.{one['name']}": str(one["default"]) for one in template["parameters"]}
        known |= {f"parameters.{name}": value for name, value in given.items()}

        def filled(text: str) -> str:
            text = text.replace("$(Agent.TempDirectory)", str(temp)).replace("$(System.AccessToken)", "t0ken")
            return re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: known[found[1]], text)

        for step in self._chosen(template["steps"], known):
            if "publish" in step:
                assert Path(filled(step["publish"])) == self.out and list(self.out.iterdir())
            inputs = step.get("inputs", {})
            program = step.get("bash") or (
                f"bash '{filled(inputs['scriptPath'])}'" if "scriptPath" in inputs else ""
            )
            if not program:
                continue
            assert "${{" not in program, "a parameter is no part of a program"
            env = {name: value for name, value in step.get("env", {}).items() if "insert" not in name}
            folder = step.get("workingDirectory") or inputs.get("workingDirectory", ".")
            code = self.shell(program, filled(folder), {name: filled(value) for name, value in env.items()})
            for added in re.findall(r"^##vso\[task.prependpath\](.+)$", self.said, flags=re.MULTILINE):
                self.environment["PATH"] = f"{added}:{self.folder}/programs:/usr/bin:/bin"
            if code:
                return code
        return 0

    def _chosen(self, steps: list[dict[str, Any]], known: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        taken = False
        for step in steps:
            [(head, below), *_] = step.items()
            if head == "${{ else }}":
                yield from [] if taken else below
            elif asked := re.fullmatch(r"\$\{\{ if eq\(([\w.]+), '?(\w*)'?\) \}\}", head):
                taken = known[asked[1]].lower() == asked[2]
                yield from below if taken else []
            else:
                yield step


@pytest.fixture(scope="module")
def running() -> Iterator[UsualAzurite]:
    """An Azurite of the account that a new project names, with its table."""
    with UsualAzurite() as running:
        with TableServiceClient.from_connection_string(running.connection_string) as account:
            users = account.create_table("Users")
            for n in range(30):
                users.create_entity({"PartitionKey": "at", "RowKey": f"user{n:02}@at.example"})
        yield running


# What both hosts run is the same (`test_the_template_runs_what_the_action_runs`).
ONE_HOST = pytest.mark.parametrize(
    "host", [GitHub, pytest.param(AzurePipelines, marks=pytest.mark.soak)], indirect=True
)


@pytest.fixture(params=[GitHub, AzurePipelines])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    """A host, and a project made by `rekey init` in a folder of the repository."""
    project = tmp_path / "repository/tables"
    project.mkdir(parents=True)
    assert run(["init", str(project)]) == 0
    (project / "migrations/0001_users_opaque_ids.py").write_text(SCRIPT, "utf-8")
    with (project / "rekey.toml").open("a") as config:
        config.write('\n[secrets.users]\nenv = "USERS_SECRET"\n')
    away = (project / "rekey.toml").read_text("utf-8").replace(":10002/", ":9/")
    (project / "rekey.toml").write_text(away, "utf-8")
    api = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    api.comments, api.attached = list(STRANGERS), {}  # type: ignore[attr-defined]
    thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    with rekey_for_a_shell(tmp_path) as programs:
        yield request.param(tmp_path, tmp_path / "repository", api, str(programs / "rekey"))
    api.shutdown()
    thread.join()
    api.server_close()


def configure(host: Host, running: UsualAzurite) -> None:
    """Name the Azurite that is running."""
    config = host.project / "tables/rekey.toml"
    text = config.read_text("utf-8").replace(":9/", f":{running.port}/")
    config.write_text(text.replace('env = "USERS_SECRET"', 'file = "users.secret"'), "utf-8")
    (host.project / "tables/users.secret").write_text("0123456789abcdef0123456789abcdef\n", "utf-8")
    (host.project / "tables/users.secret").chmod(0o600)


def test_the_plan_is_a_comment_that_is_kept_up_to_date(host: Host, running: UsualAzurite) -> None:
    configure(host, running)
    assert host.run(project="tables", offline="false", rehearse="false") == 0, host.said
    *strangers, comment = host.comments
    assert strangers == STRANGERS, "the marker of another author is no comment of ours"
    assert comment.startswith("<!-- rekey tables -->\n**rekey plan**: nothing stands in the way.\n")
    assert "````text\n0001_users_opaque_ids: Replace" in comment and "Users: 30 rows" in comment
    assert str(host.folder) not in comment
    page = (host.out / "plan.html").read_bytes()
    assert b"<title>Plan of 0001_users_opaque_ids</title>" in page
    if isinstance(host, GitHub):
        assert comment.endswith(f"({ADDRESS})\n"), "the page is in the artifact"
        assert (host.folder / "summary").read_text("utf-8") == comment
        assert (host.folder / "installed").read_text() == f"install --quiet {ROOT}\n"
    else:
        assert "[The plan as a page](https://host.example/plan.html)" in comment
        assert list(host.api.attached.values()) == [page]  # type: ignore[attr-defined]
        assert (host.folder / "installed").read_text() == "install --quiet rekey-tables\n"
    assert "@at.example" not in comment + page.decode() + host.said

    (host.project / "tables/migrations/0001_users_opaque_ids.py").write_text(UNSERVED, "utf-8")
    assert host.run(project="tables", offline="false", rehearse="false") == 1, "the findings of the plan"
    *strangers, comment = host.comments
    assert strangers == STRANGERS, "the marker of another author is no comment of ours"
    assert "**rekey plan**: `rekey apply` would refuse or stop.\n" in comment
    assert "ERROR   random-order" in comment


@ONE_HOST
def test_offline_needs_neither_account_nor_secret(host: Host) -> None:
    """A parameter that is true is spelled in more than one way."""
    spelled = "true" if isinstance(host, GitHub) else "True"
    assert host.run(project="tables", scripts="0001", offline=spelled, rehearse="false") == 0, host.said
    assert "Not looked at: tables and rows" in host.comments[-1]
    assert host.run(project="tables", scripts="0001", offline="false", rehearse="false") == 4, (
        "nobody answers there"
    )
    assert "**rekey plan**: no plan could be made." in host.comments[-1]


@ONE_HOST
def test_a_long_plan_is_cut_in_the_comment_and_whole_among_the_files(host: Host) -> None:
    """A host takes no comment of more than 64 KiB."""
    for number in range(2, 103):
        script = SCRIPT.replace('"UsersV2"', f'"UsersV{number + 1}"').replace('"Users"', f'"Users{number}"')
        (host.project / f"tables/migrations/{number:04}_more.py").write_text(script, "utf-8")
    assert host.run(project="tables", offline="true", rehearse="false") == 0, host.said
    assert len((host.out / "plan.txt").read_text("utf-8").splitlines()) > 500
    *_, comment = host.comments
    assert "\n… The whole plan is in plan.txt of the artifact.\n````\n" in comment
    assert "0102_more" not in comment and len(comment) < 2**16


@ONE_HOST
def test_what_is_given_is_never_run(host: Host) -> None:
    given = "$(touch bad) `touch bad`; touch bad"
    assert host.run(project="tables", scripts=given, offline="true", rehearse="true") == 2
    assert not list(host.folder.rglob("bad"))
    assert "**rekey rehearse**: could not take place." in host.comments[-1]


def test_a_comment_that_is_refused_does_not_hide_the_plan(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull request from a fork has no right to comment."""
    for method in ("do_GET", "do_POST"):
        monkeypatch.setattr(Api, method, lambda self: self.send_error(403))
    assert host.run(project="tables", offline="true", rehearse="false") == 0, host.said
    assert "no comment: " in host.said and "Not looked at" in host.said
    assert host.comments == STRANGERS


@ONE_HOST
def test_a_rehearsal_that_cannot_take_place_ends_the_job(host: Host) -> None:
    """Each script is tried; the plan's comment says so."""
    broken = SCRIPT.replace("from rekey", "from nowhere import it\nfrom rekey")
    (host.project / "tables/migrations/0001_users_opaque_ids.py").write_text(broken, "utf-8")
    assert host.run(project="tables", offline="true") == 2
    assert "**rekey rehearse**: could not take place." in host.comments[-1]


@pytest.mark.soak  # a whole rehearsal for each host
@pytest.mark.timeout(900)
def test_the_evidence_of_a_rehearsal_is_kept(host: Host) -> None:
    assert host.run(project="tables", offline="true", rows="60") == 0, host.said
    assert "**rekey rehearse**: passed." in host.comments[-1]
    kept = host.out / "0001_users_opaque_ids"
    assert {path.name for path in kept.iterdir()} == {"rehearsal.txt", "evidence", "evidence.pub.pem"}
    words = [command(), "evidence", "verify", kept / "evidence", "--key", kept / "evidence.pub.pem"]
    checked = subprocess.run(words, cwd=host.folder, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@ONE_HOST
def test_nothing_is_asked_unless_the_workflow_says_so(host: Host) -> None:
    """A script of a pull request is code: it is given no identity by leaving an input out."""
    assert host.run(project="tables", rehearse="false") == 0, host.said
    assert "Not looked at: tables and rows" in host.comments[-1]


@ONE_HOST
def test_no_step_imports_from_the_folder_of_the_pull_request(host: Host) -> None:
    """The step that writes the comment holds the token."""
    host.rekey = command()
    for folder in (host.project, host.project / "tables"):
        for name in ("json", "os", "sys", "urllib", "venv", "pip"):
            (folder / f"{name}.py").write_text(f"raise SystemExit('{name} of the pull request')\n", "utf-8")
    assert host.run(project="tables", rehearse="false") == 0, host.said
    assert "of the pull request" not in host.said
    assert len(host.comments) == len(STRANGERS) + 1


def test_the_page_on_ci_has_every_input_and_the_template_has_the_same() -> None:
    inputs = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))["inputs"]
    page = (ROOT / "docs/guides/ci.md").read_text("utf-8")
    assert {name for name in inputs if f"| `{name}` |" not in page} == set()
    template = yaml.safe_load((ROOT / "deploy/azure-pipelines.yml").read_text("utf-8"))["parameters"]
    others = {one["name"]: str(one["default"]).lower() for one in template}
    assert set(others) == set(inputs) - {"python-version", "token"} | {
        "pythonVersion",
        "azureSubscription",
        "env",
    }
    same = set(inputs) & set(others) - {"package"}
    assert {name for name in same if inputs[name]["default"] != others[name]} == set()


def test_the_template_runs_what_the_action_runs() -> None:
    """But for the shell's options, the host's variables, and how a comment is written."""
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))["runs"]["steps"]
    template = (ROOT / "deploy/azure-pipelines.yml").read_text("utf-8")
    alike = " ".join(template.split())
    steps = {one["name"]: " ".join(one["run"].split()) for one in action if "run" in one}
    assert set(steps) > {"Plan", "Rehearse"}
    assert {name for name in steps if steps[name] not in alike} == {"Install rekey", "Comment"}


@ONE_HOST
def test_the_hook_for_pre_commit_looks_at_what_is_about_to_be_committed(host: Host) -> None:
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert (hook["language"], hook["pass_filenames"]) == ("python", False)
    changed = [
        "migrations/0001_users_opaque_ids.py",
        "tables/migrations/0001_a.py",
        "rekey.toml",
        "docs/a.py",
    ]
    begins = [bool(re.search(hook["files"], name)) for name in changed]
    assert begins == [True, True, False, False], "a project may be committed before it has a script"
    name, *words = shlex.split(hook["entry"])
    assert name == "rekey"
    script = host.project / "tables/migrations/0001_users_opaque_ids.py"
    for text, code in ((SCRIPT, 0), (UNSERVED, 1), ("nonsense(", 2)):
        script.write_text(text, "utf-8")
        done = subprocess.run([host.rekey, *words], cwd=script.parents[1], capture_output=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
