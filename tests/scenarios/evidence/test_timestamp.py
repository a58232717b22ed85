"""An authority that the test makes, with openssl, stamps a statement; a stamp over anything else, by anybody
else, or with another byte in it is found. The answer of the authority is RFC 3161's own."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from rekey.errors import ConfigurationError
from rekey.evidence import bag, signing, timestamp
from rekey.evidence.keys import PublicKey
from rekey.evidence.verify import Trusted, verify
from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.evidence import codes, restated, rows, with_key
from tests.worlds.projects import USERS_SCRIPT, Project

CURVE = "ec_paramgen_curve:prime256v1"
SETTINGS = """\
[ req ]
distinguished_name = name
prompt = no
[ name ]
CN = An authority for tests
[ root ]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
[ stamping ]
extendedKeyUsage = critical,timeStamping
keyUsage = critical,digitalSignature
[ tsa ]
default_tsa = here
[ here ]
serial = serial
signer_cert = tsa.pem
signer_key = tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
ess_cert_id_alg = sha256
"""


@dataclass
class Authority:
    """A time stamp authority: a root, a certificate under it, and openssl."""

    folder: Path
    spoiled: bytes | None = None
    status: int = 200

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.folder / "settings").write_text(SETTINGS, "utf-8")
        (self.folder / "serial").write_text("01\n", "utf-8")
        new = ("req", "-new", "-newkey", "ec", "-pkeyopt", CURVE, "-nodes", "-config", "settings")
        self.do(*new, "-x509", "-extensions", "root", "-keyout", "root.key", "-out", "root.pem", "-days", "9")
        self.do(*new, "-keyout", "tsa.key", "-out", "tsa.req", "-subj", "/CN=Stamping for tests")
        issue = ("x509", "-req", "-in", "tsa.req", "-CA", "root.pem", "-CAkey", "root.key", "-days", "8")
        self.do(
            *issue, "-set_serial", "7", "-extfile", "settings", "-extensions", "stamping", "-out", "tsa.pem"
        )

    def do(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    @property
    def root(self) -> Path:
        return self.folder / "root.pem"

    def answer(self, query: bytes) -> bytes:
        (self.folder / "query").write_bytes(query)
        self.do("ts", "-reply", "-config", "settings", "-queryfile", "query", "-out", "reply")
        return (self.folder / "reply").read_bytes()

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Answer on loopback; yield the URL."""
        authority = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.headers["Content-Type"] == "application/timestamp-query"
                query = self.rfile.read(int(self.headers["Content-Length"]))
                body = authority.answer(query) if authority.spoiled is None else authority.spoiled
                self.send_response(authority.status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}/tsa"
            finally:
                server.shutdown()
                thread.join()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tsa") / "authority")


@pytest.fixture
def authority(made: Authority) -> Authority:
    made.spoiled, made.status = None, 200
    return made


@pytest.fixture
async def rekey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands_on: CommandsOn) -> Commands:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    project = Project(tmp_path / "project")
    project.script(USERS_SCRIPT)
    await project.fill("Users", rows(5))
    return commands_on(project)


@pytest.fixture
def key(rekey: Commands) -> PublicKey:
    """The project's key."""
    return with_key(rekey.project.folder)


def test_tampering_with_a_time_stamp_is_found(rekey: Commands, authority: Authority, key: PublicKey) -> None:
    """Also in the bytes that the authority's own signature leaves out, and without its root at hand."""
    rekey("apply", "0001")
    folder = rekey.project.folder / "bundle"
    with authority.serving() as url:
        assert "stamped by" in rekey("evidence", "export", str(folder), "--timestamp", url).out
    root = ("--timestamp-root", str(authority.root))
    said = rekey("evidence", "verify", str(folder), *root, "--json").json
    assert said["right"] is True
    assert said["stamped_at"]
    without = rekey("evidence", "verify", str(folder), code=2)
    assert "--timestamp-root" in without.err
    left = rekey("evidence", "verify", str(folder), "--without-timestamp", "--json").json
    assert (left["right"], left["stamped_at"]) == (True, None)

    path, stated = folder / bag.TIMESTAMP, (folder / bag.STATEMENT).read_bytes()
    answer, certificate = path.read_bytes(), authority.root.read_bytes()
    timestamp.check(answer, stated, certificate)
    trusted = Trusted([key], root=certificate, ignore_timestamp=True)
    for name in (bag.TIMESTAMP, bag.TIMESTAMP_SIGNATURE):
        data = (folder / name).read_bytes()
        for at in {*range(0, len(data), 61), len(data) - 1}:
            for middle in (bytes([data[at] ^ 1]), b"", data[at : at + 1] * 2):
                (folder / name).write_bytes(data[:at] + middle + data[at + 1 :])
                assert "timestamp" in codes(verify(folder, trusted)), (name, at)
        (folder / name).write_bytes(data)
    assert verify(folder, trusted).is_right
    with pytest.raises(ValueError, match="Mismatch"):
        timestamp.check(answer, stated + b" ", certificate)

    restated(folder, signing.read_private(rekey.project.folder / "evidence.pem"))
    trusted = Trusted([key], root=certificate)
    assert codes(verify(folder, trusted)) == set(), "signed again, it is the same statement"
    (folder / "data/report.html").write_text("another", "utf-8")
    restated(folder, signing.read_private(rekey.project.folder / "evidence.pem"))
    assert codes(verify(folder, trusted)) == {"timestamp"}, "the stamp is over another statement"
    path.unlink()
    assert "timestamp" in codes(verify(folder, trusted)), "a stamp that was taken away"


def test_a_stamp_that_was_taken_away_is_found(rekey: Commands, authority: Authority, key: PublicKey) -> None:
    """With both of its files, and whatever is asked of stamps; a bundle without one announces none."""
    rekey("apply", "0001")
    folder, plain = rekey.project.folder / "bundle", rekey.project.folder / "plain"
    with authority.serving() as url:
        rekey("evidence", "export", str(folder), "--timestamp", url)
    for name in (bag.TIMESTAMP, bag.TIMESTAMP_SIGNATURE):
        (folder / name).unlink()
    for words in ((), ("--without-timestamp",), ("--key", str(rekey.project.folder / "evidence.pub.pem"))):
        said = rekey("evidence", "verify", str(folder), *words, code=1)
        assert "the time stamp is gone" in said.out
    assert "No table was read" in rekey("evidence", "recompute", str(folder), code=1).err
    rekey("evidence", "export", str(plain))
    rekey("evidence", "verify", str(plain))


def test_a_stamp_of_another_authority_is_found(
    rekey: Commands, authority: Authority, key: PublicKey, tmp_path: Path
) -> None:
    rekey("apply", "0001")
    folder = rekey.project.folder / "bundle"
    with authority.serving() as url:
        rekey("evidence", "export", str(folder), "--timestamp", url)
    other = Authority(tmp_path / "other")
    said = rekey("evidence", "verify", str(folder), "--timestamp-root", str(other.root), code=1)
    assert "does not vouch" in said.out


@pytest.mark.parametrize(("spoiled", "status", "code"), [(b"no", 200, 4), (b"", 200, 4), (b"no", 500, 4)])
def test_an_authority_that_does_not_stamp_leaves_no_bundle(
    rekey: Commands, authority: Authority, spoiled: bytes, status: int, code: int
) -> None:
    rekey("apply", "0001")
    authority.spoiled, authority.status = spoiled, status
    folder = rekey.project.folder / "bundle"
    with authority.serving() as url:
        said = rekey("evidence", "export", str(folder), "--timestamp", url, code=code)
    assert "time stamp authority" in said.err
    assert [path.name for path in folder.parent.glob("*bundle*")] == []


def test_an_answer_to_another_request_is_not_kept(rekey: Commands, authority: Authority) -> None:
    """Same authority, same signature, another statement: what a replayed answer looks like."""
    rekey("apply", "0001")
    with authority.serving() as url:
        authority.spoiled = timestamp.ask(url, b"something else")
        said = rekey("evidence", "export", str(rekey.project.folder / "b"), "--timestamp", url, code=4)
    assert "stamped something else" in said.err


def test_an_authority_that_is_not_there_or_no_url_is_told(rekey: Commands) -> None:
    rekey("apply", "0001")
    folder = str(rekey.project.folder / "bundle")
    said = rekey("evidence", "export", folder, "--timestamp", "http://127.0.0.1:1/", code=4)
    assert "could not be reached" in said.err
    for url in ("file:///etc/hostname", "tsa", "ftp://a/"):
        assert "http or https" in rekey("evidence", "export", folder, "--timestamp", url, code=2).err


def test_a_root_that_is_no_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root.pem").write_text("x", "utf-8")
    for name in ("root.pem", "none.pem"):
        with pytest.raises(ConfigurationError, match="not a certificate"):
            timestamp.read_root(tmp_path / name)
