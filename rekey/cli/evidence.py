"""`rekey evidence`: a key to sign with, a bundle for auditors, and its check. `verify` and `keygen` need no
project: an auditor has none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from rekey.cli.project import open_project
from rekey.cli.shell import FILE, FOLDER, SCRIPT, Shell, command, file_option, flag
from rekey.core.plain import plain
from rekey.declaration.key_space import key_condition, key_space_of
from rekey.declaration.mapper import Mapper
from rekey.errors import ConfigurationError, ExitCode, Locked, MachineFailed, StateUnusable, one_line
from rekey.evidence.bag import is_unsigned, payload, require_bundle, statement_sha256
from rekey.evidence.contents import DECLARATION
from rekey.evidence.export import export as write
from rekey.evidence.export import exports_of, record_verified
from rekey.evidence.keys import PublicKey
from rekey.evidence.recompute import Compared, last_full
from rekey.evidence.recompute import recompute as compute
from rekey.evidence.signing import make_key, open_signer, public_path, read_public
from rekey.evidence.timestamp import read_root
from rekey.evidence.verify import Trusted, Verdict
from rekey.evidence.verify import verify as check
from rekey.phases import Phase
from rekey.project.config import Config, load_config, reading
from rekey.protocol.opening import Prepared
from rekey.runner.refusals import refusal
from rekey.state.store import State

KEY_FILE = "evidence.pem"

_GIVE_KEY = "--key FILE, the public key that you were given; never one that came with the bundle"
_KEY = file_option(
    "--key",
    "key_files",
    multiple=True,
    help="A public key that may have signed. By default the one of this project, if it exported the bundle.",
)


@click.group(
    epilog="""\b
Example:
  rekey evidence keygen
  rekey evidence export ./evidence-0001 0001
  rekey evidence verify ./evidence-0001 --key evidence.pub.pem
"""
)
def evidence() -> None:
    """Export what was done as evidence for auditors, and check it.

    `export` writes a bundle that can be checked on any machine, even without rekey; `verify` checks one;
    `recompute` computes its content digests again from the tables.
    """


@command("keygen", example="rekey evidence keygen\nrekey evidence keygen keys/evidence.pem")
@click.argument("file", type=FILE, default=KEY_FILE)
def keygen(shell: Shell, file: Path) -> ExitCode:
    """Make the Ed25519 key that signs evidence: FILE, and its public half next to it.

    Hand the public half to the auditors, before there is anything to check. Overwrites nothing.
    """
    key, public = make_key(file), public_path(file)
    text = f"""\
private  {file} (keep it to yourself)
public   {public} (hand it to the auditors)
key id   {key.key_id}

Next: name it in {shell.config.path}:
  [evidence]
  key_file = "{file}"
"""
    return shell.emit({"key_file": str(file), "public_key_file": str(public), "key_id": key.key_id}, text)


@command(
    "export",
    example="rekey evidence export ./evidence-0001 0001"
    "\nrekey evidence export ./evidence-0001 0001 --timestamp https://tsa.example/",
)
@click.argument("folder", type=FOLDER)
@SCRIPT
@click.option(
    "--timestamp", "authority", metavar="URL", help="Have a time stamp authority (RFC 3161) stamp it."
)
def export(shell: Shell, folder: Path, script: str | None, authority: str | None) -> ExitCode:
    """Write the evidence of SCRIPT to FOLDER, which must not be there yet.

    Holds the audit log with its checkpoint, declaration and script, plan, gate decisions, verifications with
    their content digests, and a report for people. Holds no key of a row and no secret. Signed by the key of
    [evidence]; without one it says that it is not signed. Reads no table.
    """
    project = open_project(shell)
    declared = project.the_one(script, Phase.PREPARE)
    signer = open_signer(project.config)
    with State.open(project.config.state) as state:
        name = declared.migration.group
        group = {script.script_id: script.digest for script in project.choose_group(name)} if name else None
        done = write(project.config, declared, state, folder, signer=signer, authority=authority, group=group)
    lines = [
        f"{declared.script_id}: {done.files} files in {folder}, {done.events:,} events of the audit log",
        f"  signed by   {done.key_id}" if done.key_id else "  not signed  no key is configured ([evidence])",
        *(["  stamped by  the time stamp authority"] if done.stamped else []),
        *(["  with        the report of `rekey doctor --live`"] if done.live else []),
        f"  statement   sha256 {done.statement_sha256}",
        f"  next        {shell.command(f'evidence verify {folder}')}",
    ]
    if not done.key_id:
        shell.note(
            "warning: the bundle is not signed: anyone who can edit its files can forge it;"
            f" `{shell.command('evidence keygen')}` makes a key",
            "warning",
        )
    return shell.emit({**asdict(done), "folder": str(folder), "signed": bool(done.key_id)}, "\n".join(lines))


@command(
    "verify",
    example="rekey evidence verify ./evidence-0001 --key evidence.pub.pem"
    "\nrekey evidence verify ./evidence-0001 --key evidence.pub.pem --checkpoint kept-last-year",
)
@click.argument("folder", type=FOLDER)
@_KEY
@file_option(
    "--checkpoint",
    "kept",
    help="A checkpoint of the same log, kept from an earlier bundle: nothing before it may have changed.",
)
@file_option("--timestamp-root", help="The root certificate of the time stamp authority.")
@flag("--without-timestamp", help="Leave a time stamp unchecked.")
def verify(
    shell: Shell,
    folder: Path,
    key_files: tuple[Path, ...],
    kept: Path | None,
    timestamp_root: Path | None,
    without_timestamp: bool,
) -> ExitCode:
    """Check the bundle in FOLDER. Exit code 1 when anything is wrong with it.

    Finds a changed byte, a file added or removed, an event removed, moved or inserted, a log that was cut
    off, a bundle made again or signed with another key. Needs the bundle and the public key, nothing else.
    """
    if timestamp_root is not None and without_timestamp:
        raise click.UsageError("--timestamp-root and --without-timestamp contradict each other")
    keys = _keys_for(shell, key_files, folder)
    root = None if timestamp_root is None else read_root(timestamp_root)
    try:
        earlier = None if kept is None else kept.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        raise refusal("no-checkpoint", file=kept) from None
    verdict = check(folder, Trusted(keys, root=root, ignore_timestamp=without_timestamp, earlier=earlier))
    recorded = verdict.is_right and _record(shell, folder, verdict)
    code = ExitCode.DONE if verdict.is_right else ExitCode.FINDINGS
    about = verdict.predicate
    lines = [f"{folder}: {'everything holds' if verdict.is_right else 'NOT as it was exported'}"]
    if about:
        lines.append(f"  about       {about.get('script_id')}, exported {about.get('exported_at')}")
    if verdict.key_id:
        lines += [f"  signed by   {verdict.key_id}", f"  key from    {verdict.key_origin}"]
    lines += [f"  holds       {check}" for check in verdict.checked]
    lines += [f"  WRONG       {finding.what}" for finding in verdict.findings]
    if recorded:
        lines.append("  recorded    in the audit log of this project")
    document = {"folder": str(folder), **verdict.as_json(), "recorded": recorded}
    # A file's name may hold text that looks like a line of this output.
    return shell.emit(document, "\n".join(map(one_line, lines)), code)


@command(
    "recompute",
    example="rekey evidence recompute ./evidence-0001"
    "\nrekey evidence recompute ./evidence-0001 --endpoint https://ACCOUNT.table.core.windows.net",
)
@click.argument("folder", type=FOLDER)
@_KEY
@click.option("--endpoint", metavar="URL", help="The account of the tables. By default this project's.")
@click.option("--key-env", metavar="NAME", help="The environment variable with that account's shared key.")
@click.option("--targets-endpoint", metavar="URL", help="The account of tables named NAME@targets, likewise.")
@click.option("--targets-key-env", metavar="NAME", help="The variable with the shared key of that account.")
@flag("--mapping", help="Map the source's rows again, with this project's script and secrets.")
def recompute(
    shell: Shell,
    folder: Path,
    key_files: tuple[Path, ...],
    endpoint: str | None,
    key_env: str | None,
    targets_endpoint: str | None,
    targets_key_env: str | None,
    mapping: bool,
) -> ExitCode:
    """Compute the content digests of the bundle in FOLDER again, from the tables.

    Reads the tables, nothing else. Exit code 1 when one differs: it was written since the verification, or
    is not what was verified. The bundle is checked first.
    """
    if endpoint is None and (key_env or targets_endpoint or targets_key_env):
        raise click.UsageError("--key-env, --targets-endpoint and --targets-key-env go with --endpoint")
    if targets_endpoint is None and targets_key_env:
        raise click.UsageError("--targets-key-env goes with --targets-endpoint")
    targets = targets_endpoint, targets_key_env
    if endpoint is None or mapping:
        _refuse_within(shell, folder)
    verdict = check(folder, Trusted(_keys_for(shell, key_files, folder), ignore_timestamp=True))
    if not verdict.is_right:
        findings, command = (
            "; ".join(finding.what for finding in verdict.findings),
            f"evidence verify {folder}",
        )
        raise refusal("bundle-changed", folder=folder, findings=findings, command=shell.command(command))
    files = payload(folder)
    recorded, where = last_full(files), json.loads(files[DECLARATION]).get("where")
    key_space = None if where is None else key_space_of(key_condition(where))
    mapper = _mapper(shell, verdict) if mapping else None
    config = load_config(shell.config.path) if endpoint is None else reading(endpoint, key_env, targets)
    for table in (recorded["source"], *(target["table"] for target in recorded["tables"])):
        config.holding(table)

    async def from_tables() -> list[Compared]:
        async with shell.connect(config) as accounts:
            opened = accounts.tables, shell.progress()
            return await compute(recorded, *opened, mapper=mapper, key_space=key_space)

    comparisons = shell.do(from_tables())
    code = ExitCode.DONE if all(comparison.is_equal for comparison in comparisons) else ExitCode.FINDINGS
    lines = [f"verified on {recorded['finished_at']}; now:"]
    names = {"source": "source", "target": "target", "expected": "what the source gives for"}
    for comparison in comparisons:
        if not comparison.found_digest:
            text = "NOT there"
        elif comparison.is_equal:
            text = (
                "the same"
                if comparison.recorded_digest
                else "as many rows (too few for its digest to be told)"
            )
        else:
            text = f"ANOTHER, {comparison.recorded_rows:,} rows then"
        lines.append(f"  {names[comparison.what]} {comparison.table}: {comparison.found_rows:,} rows, {text}")
        lines += [f"    then  {comparison.recorded_digest}"] if comparison.recorded_digest else []
        lines += [f"    now   {comparison.found_digest}"] if comparison.found_digest else []
    document = {"script_id": verdict.predicate["script_id"], "verified_at": recorded["finished_at"]}
    return shell.emit({**document, "digests": plain(comparisons)}, "\n".join(lines), code)


def _mapper(shell: Shell, verdict: Verdict) -> Mapper:
    project = open_project(shell)
    declared = project.choose(verdict.predicate["script_id"])
    if declared.digest != verdict.predicate["declaration_sha256"]:
        raise refusal("not-the-bundles-script", script=declared.script_id)
    return Prepared.of(project.config, declared).mapper


def _record(shell: Shell, folder: Path, verdict: Verdict) -> bool:
    """Record in the project's audit log, where the gate before `retire` looks, that its own bundle was
    verified; tell whether it was recorded."""
    if not shell.has_project:
        return False
    try:
        config = _exporter(shell, folder)
        if config is None:
            return False
        with State.open(config.state) as state:
            return record_verified(state, verdict)
    except (ConfigurationError, StateUnusable, Locked, MachineFailed) as error:
        shell.note(f"warning: this verification is not recorded: {error.what}", "warning")
        return False


# --- the key to check with ---


def _keys_for(shell: Shell, files: Sequence[Path], folder: Path) -> list[PublicKey]:
    """Return the given keys, else the key of the configured project if its audit log says that it exported
    this very statement: the public key is never taken from the bundle.

    Raises:
        ConfigurationError: no key is given, and no project with a key exported the bundle; or there is no
            such folder.
    """
    require_bundle(folder)
    if files:
        return [read_public(path) for path in files]
    what = "Give the signer's public key: --key FILE"
    if shell.has_project:
        try:
            config = _exporter(shell, folder)
        except StateUnusable as error:
            raise ConfigurationError(error.what, hint=_GIVE_KEY) from None
        if config is None:
            what = (
                f"the audit log of the project {shell.config.path} does not say that it exported this bundle,"
                " so its key is not taken for the one that signed it"
            )
        elif (signer := open_signer(config)) is not None:
            origin = f"the project {config.path}, whose audit log says that it exported this"
            return [replace(signer.public, origin=origin)]
    if is_unsigned(folder):
        raise refusal("bundle-not-signed", folder=folder)
    raise ConfigurationError(what, hint=_GIVE_KEY)


def _exporter(shell: Shell, folder: Path) -> Config | None:
    """Return the project's configuration if its audit log says that it exported this bundle, else None. The
    state file is only read. Raises ConfigurationError, and the errors of `State.open`."""
    sha256 = statement_sha256(folder)
    _refuse_within(shell, folder)
    config = load_config(shell.config.path)
    with State.open(config.state, read_only=True) as state:
        return config if exports_of(state, sha256) else None


def _refuse_within(shell: Shell, folder: Path) -> None:
    """Raise ConfigurationError for a project inside the bundle: it comes from the maker of the bundle."""
    path = shell.config.path
    places = (path.parent.resolve() / path.name, path.resolve())
    if any(place.is_relative_to(folder.resolve()) for place in places):
        raise refusal("project-in-bundle", project=path, give_key=_GIVE_KEY)


for _command in (keygen, export, verify, recompute):
    evidence.add_command(_command)
