"""What the program takes of a machine, taken from the simulation: words, time, and who holds a lease.

Rules kept here:

* Whatever is drawn here is drawn from the seed, so that a life can be lived again.
* All runners are of one host, boot, path and process id, as in containers of one machine: told apart is what
  the program tells apart.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest import mock

from rekey.client.lease import ClientLease
from rekey.client.sdk import core
from rekey.core.clock import monotonic_seconds
from rekey.plan import subject
from rekey.protocol.journal import Journal
from rekey.protocol.lease import Holder, RunnerLease
from rekey.runner import session, verification


@contextmanager
def made_repeatable(
    words: random.Random,
    time: Callable[[], float],
    ticks: Callable[[], int],
    record: Callable[..., None],
) -> Iterator[None]:
    """Put a simulation's time and draws where the program takes the machine's.

    Args:
        words: where words and keys are drawn from.
        time: the loop's time, for all that is measured by a clock that only rises.
        ticks: the service's time.
        record: is told of each full verification, and records it.
    """
    client_lease = partial(ClientLease, monotonic=time, jitter=lambda: 0.5)
    before_level = logging.root.manager.disable
    with ExitStack() as stack:
        for replaced in (
            *(
                mock.patch.object(module, "new_key", lambda: words.randbytes(32))
                for module in (session, subject)
            ),
            mock.patch("secrets.token_hex", lambda n=32: words.randbytes(n).hex()),
            mock.patch("secrets.token_bytes", words.randbytes),
            mock.patch.object(core, "ClientLease", client_lease),
            mock.patch.object(core, "Journal", partial(Journal, now=ticks)),
            mock.patch.object(session, "RunnerLease", partial(RunnerLease, monotonic=time)),
            mock.patch.object(Holder, "current", staticmethod(at_the_same_path)),
            mock.patch.object(verification, "record", record),
            *(
                mock.patch.object(module, "monotonic_seconds", time)
                for name, module in list(sys.modules.items())
                if name.startswith("rekey.")
                and getattr(module, "monotonic_seconds", None) is monotonic_seconds
            ),
        ):
            stack.enter_context(replaced)
        logging.disable(logging.CRITICAL)  # clients say that they are kept waiting
        stack.callback(logging.disable, before_level)
        yield


def at_the_same_path(lock: str) -> Holder:
    """Return the holder as it is in a container: every one has the same host, path and process id, and a file
    of its own."""
    return _current(lock)


_current = Holder.current
