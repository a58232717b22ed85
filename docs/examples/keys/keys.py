"""Keys as rekey makes them: opaque ids, buckets, inverted ticks. Standard library alone."""

import base64
import hashlib
import hmac
import re
import sys
import zlib
from datetime import datetime

STANDARD, CROCKFORD = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", "0123456789abcdefghjkmnpqrstvwxyz"


def opaque(secret: bytes, domain: str, *parts: str) -> str:
    """Return the id that `keys.opaque(*parts, domain=domain, secret=…)` makes."""
    values = [part.encode() for part in parts]
    framed = values if len(values) == 1 else [len(value).to_bytes(4, "big") + value for value in values]
    message = b"rekey/v1\0" + domain.encode() + b"\0" + b"".join(framed)
    digest = hmac.digest(secret, message, "sha256")[:20]
    return base64.b32encode(digest).decode().translate(str.maketrans(STANDARD, CROCKFORD))


def bucket(count: int, algorithm: str, prefix: str, text: str) -> str:
    """Return the name that `keys.bucket(count, algorithm, text, prefix)` makes."""
    data = text.encode()
    is_crc = algorithm == "crc32"
    number = zlib.crc32(data) if is_crc else int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
    return prefix + str(number % count).zfill(max(3, len(str(count - 1))))


def inverted_ticks(moment: str) -> str:
    """Return what `keys.inverted_ticks` makes of a UTC moment, 2024-03-05T10:20:30.1234567Z."""
    seconds, fraction = re.fullmatch(r"(.{19})(?:\.(\d{1,7}))?(?:Z|\+00:00)", moment).groups()
    since = datetime.fromisoformat(seconds) - datetime.min  # noqa: DTZ901 - year 1
    ticks = (since.days * 86_400 + since.seconds) * 10_000_000 + int((fraction or "").ljust(7, "0"))
    return str(3_155_378_975_999_999_999 - ticks).zfill(19)


if __name__ == "__main__":  # one key for each line: its function and arguments, as hex with commas
    for line in sys.stdin:
        name, first, *rest = [bytes.fromhex(field) for field in line.strip().split(",")]
        texts = [one.decode() for one in rest]
        if name == b"opaque":
            print(opaque(first, *texts))
        elif name == b"bucket":
            print(bucket(int(first), *texts))
        else:
            print(inverted_ticks(first.decode()))
