"""A process of an application that writes registrations through the dual-write client, until told to end."""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path

from azure.core.exceptions import AzureError, HttpResponseError

from rekey import DualWriteTableClient
from rekey.client.lease import LeaseSettings
from rekey.declaration.mapper import Mapper
from rekey.declaration.scripts import load_script
from rekey.errors import RekeyError
from tests.worlds.small import racer

SETTINGS = LeaseSettings(poll_s=0.3, lease_s=3.0, longest_operation_s=2.0, freeze_wait_s=20.0)


def application(
    config: str,
    script_id: str,
    view: str,
    number: int,
    seed: int,
    race: str,
    environment: dict[str, str],
    ends: Event,
    pause_s: float,
) -> None:
    """Write rows of one's own through a client, with pauses, until told to end, or killed; what is refused is
    left."""
    os.environ.update(environment)
    draw = random.Random(seed)
    mapper = Mapper(load_script(Path(config).parent / "migrations" / f"{script_id}.py").migration, {})
    with DualWriteTableClient.from_config(config, script_id, view=view, settings=SETTINGS) as client:
        while not ends.is_set():
            time.sleep(pause_s)  # not in `ends.wait`: who is killed there leaves an event that cannot be set
            bib, age = f"{number:02}{draw.randrange(6):02}", 20 + draw.randrange(4)
            row = racer(bib, age, draw.choice(("John", "Jack")), race, Time=draw.randrange(1000))
            row = mapper.map(row)[0].row if view == "new" else row
            with suppress(AzureError, RekeyError, HttpResponseError):
                if draw.random() < 0.25:
                    client.delete_entity(row["PartitionKey"], row["RowKey"])
                else:
                    client.upsert_entity(row, mode=draw.choice(("replace", "merge")))
