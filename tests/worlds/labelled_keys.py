"""Labelled keys, made with Faker in several locales, for `tests/unit/inspect/test_shapes_measured.py`.

A label is the shape a person would name; None: none of them. Keys a service would refuse are left out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from faker import Faker

from rekey.core.clock import MAX_TICKS
from rekey.core.limits import check_key
from rekey.errors import RowRefused
from rekey.inspect.shapes import Shape

LOCALES = (
    *("en_US", "en_GB", "de_DE", "fr_FR", "es_ES", "it_IT", "pl_PL", "pt_BR"),
    *("sv_SE", "fi_FI", "ko_KR", "ja_JP", "zh_CN", "ru_RU"),
)
WITH_FORMED_IDS = {"en_US", "fr_FR", "it_IT", "pl_PL", "pt_BR", "sv_SE", "fi_FI", "ko_KR", "zh_CN"}
"""Locales whose national ids have a form or check digits that Faker's follow."""
EACH = 60
_DATE_FORMATS = (
    *("%Y-%m-%d", "%Y-%m", "%Y%m%d", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S.%fZ", "%d.%m.%Y"),
    *("%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d-%H", "%Y%m%d%H%M%S", "%Y.%m.%d", "%d-%b-%Y"),
)
_EPOCH = datetime(1, 1, 1, tzinfo=UTC)

Make = Callable[[Faker, random.Random], str]


def _ticks(fake: Faker, lot: random.Random) -> int:
    moment = fake.date_time_between(datetime(1995, 1, 1), datetime(2055, 1, 1)).replace(tzinfo=UTC)  # noqa: DTZ001
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 10_000_000 + lot.randrange(10_000_000)


def _grouped(fake: Faker, lot: random.Random) -> str:
    number = fake.credit_card_number()
    between = lot.choice(("", "", " ", "-"))
    return between.join(number[at : at + 4] for at in range(0, len(number), 4))


def _guid(_fake: Faker, lot: random.Random) -> str:
    made = uuid.UUID(int=lot.getrandbits(128), version=lot.choice((1, 4, 4, 4)))
    return lot.choice((str(made), str(made).upper(), made.hex, f"{{{made}}}", str(made)))


def _name(fake: Faker, lot: random.Random) -> str:
    first, last = fake.first_name().replace(" ", "-"), fake.last_name().replace(" ", "-")
    name = f"{first}.{last}"
    return name if lot.random() < 0.3 else name.lower()


def _jwt(fake: Faker, lot: random.Random) -> str:
    parts = [
        json.dumps(part).encode() for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": fake.user_name()})
    ]
    return ".".join(
        base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (*parts, lot.randbytes(32))
    )


def _sas(_fake: Faker, lot: random.Random) -> str:
    signature = base64.urlsafe_b64encode(lot.randbytes(32)).decode()
    return f"sv=2022-11-02&ss=t&srt=sco&sp=rwdl&se=2027-01-01T00:00:00Z&sig={signature}"


SHAPED: dict[Shape, tuple[Make, ...]] = {
    Shape.EMAIL: (
        lambda fake, lot: fake.email(),
        lambda fake, lot: fake.ascii_company_email(),
        lambda fake, lot: f"user_{fake.safe_email()}",
        lambda fake, lot: f"{lot.randrange(10**6)}|{fake.free_email().upper()}",
    ),
    Shape.GUID: (_guid, _guid, lambda fake, lot: f"order_{uuid.UUID(int=lot.getrandbits(128), version=4)}"),
    Shape.DATE: (
        lambda fake, lot: fake.date_time_this_century().strftime(lot.choice(_DATE_FORMATS)),
        lambda fake, lot: fake.iso8601(),
        lambda fake, lot: f"{fake.slug()}_{fake.date()}",
    ),
    Shape.TICKS: (
        lambda fake, lot: f"{_ticks(fake, lot):019d}",
        lambda fake, lot: str(_ticks(fake, lot)),
        lambda fake, lot: f"{_ticks(fake, lot):019d}-{lot.randrange(10**6):010d}",
    ),
    Shape.INVERTED_TICKS: (
        lambda fake, lot: f"{MAX_TICKS - _ticks(fake, lot):019d}",
        lambda fake, lot: f"{MAX_TICKS - _ticks(fake, lot):019d}_{fake.slug()}",
    ),
    Shape.CARD: (_grouped, _grouped, lambda fake, lot: f"card_{fake.credit_card_number()}"),
    Shape.SLUG: (lambda fake, lot: f"{fake.slug()}-{fake.slug()}",),
    Shape.NUMBER: (lambda fake, lot: str(lot.randrange(1, 10 ** lot.randrange(1, 11))),),
    Shape.PADDED: (lambda fake, lot: f"{lot.randrange(10**6):0{lot.randrange(8, 15)}d}",),
    Shape.PHONE: (lambda fake, lot: fake.phone_number(),),
    Shape.NATIONAL_ID: (lambda fake, lot: fake.ssn(),),
    Shape.NAME: (_name,),
    Shape.SECRET: (
        _jwt,
        _sas,
        lambda fake, lot: "ghp_" + "".join(lot.choices("abcdefghijklmnopqrstuvwxyzABCDEFGH0123456789", k=36)),
    ),
    Shape.DIGEST: (
        lambda fake, lot: hashlib.sha256(fake.email().encode()).hexdigest(),
        lambda fake, lot: hashlib.sha1(fake.email().encode(), usedforsecurity=False).hexdigest(),
        lambda fake, lot: hashlib.md5(fake.email().encode(), usedforsecurity=False).hexdigest(),
    ),
}
"""How keys of each shape are made."""

SHAPELESS: tuple[Make, ...] = (
    lambda fake, lot: fake.word(),
    lambda fake, lot: fake.city(),
    lambda fake, lot: fake.company(),
    lambda fake, lot: fake.user_name().replace(".", ""),
    lambda fake, lot: fake.hostname(),
    lambda fake, lot: fake.file_name(),
    lambda fake, lot: fake.ipv4(),
    lambda fake, lot: fake.hex_color().lstrip("#"),
    lambda fake, lot: fake.bothify("??-####"),
    lambda fake, lot: fake.bothify("SKU-????-########"),
    lambda fake, lot: f"@{fake.user_name()}",
    lambda fake, lot: f"v{lot.randrange(9)}.{lot.randrange(30)}.{lot.randrange(99)}",
    lambda fake, lot: f"{fake.word()}@{lot.randrange(99)}",
    lambda fake, lot: fake.mac_address(),
    lambda fake, lot: "",
)
"""How keys without a shape are made, many of them close to one."""

NUMBERS: tuple[Make, ...] = (
    lambda fake, lot: fake.ean13(),
    lambda fake, lot: str(lot.randrange(10**15, 10**16)),
    lambda fake, lot: str(lot.randrange(10**17, 10**19)),
    lambda fake, lot: str(lot.randrange(10**7, 10**8)),
    lambda fake, lot: str(1_000_000_000 + lot.randrange(10**9)),
)
"""Numbers that could be taken for a card, a moment or a date."""


def labelled_keys(seed: int = 0) -> Iterator[tuple[Shape | None, str]]:
    """Yield (label, key); the same seed gives the same keys."""
    for locale in LOCALES:
        fake, lot = Faker(locale), random.Random(f"{seed}/{locale}")
        fake.seed_instance(f"{seed}/{locale}")
        for label, key in _of_one_locale(fake, lot, formed_ids=locale in WITH_FORMED_IDS):
            try:
                check_key(key, "", allow_empty=True)
            except RowRefused:
                continue
            yield label, key


def _of_one_locale(
    fake: Faker, lot: random.Random, *, formed_ids: bool
) -> Iterator[tuple[Shape | None, str]]:
    for shape, makers in SHAPED.items():
        if shape is Shape.NATIONAL_ID and not formed_ids:
            continue
        for turn in range(EACH):
            key = makers[turn % len(makers)](fake, lot)
            # Telephones written in bare digits are numbers: that is the rule, not a miss.
            if shape is not Shape.PHONE or not key.isdigit():
                yield shape, key
    for turn in range(3 * EACH):
        yield None, SHAPELESS[turn % len(SHAPELESS)](fake, lot)
        number = NUMBERS[turn % len(NUMBERS)](fake, lot)
        yield Shape.PADDED if number.startswith("0") else Shape.NUMBER, number
