"""A dask cluster of two processes with TLS, for tests: says where it is, and ends when its input does.

Run as a program: `python dask_cluster.py FOLDER`. It leaves the certificates of a client in the folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from distributed import LocalCluster
from distributed.security import Security


def main(folder: Path) -> None:
    """Begin the cluster, print its address and its workers' process ids, wait."""
    security = Security.temporary()
    for name, pem in (
        ("ca.pem", security.tls_ca_file),
        ("client.pem", security.tls_client_cert),
        ("client.key", security.tls_client_key),
    ):
        (folder / name).write_text(pem, "ascii")
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        security=security,
        protocol="tls://",
        host="127.0.0.1",
        dashboard_address=None,
        local_directory=str(folder),
    ) as cluster:
        said = {
            "address": cluster.scheduler_address,
            "workers": [worker.pid for worker in cluster.workers.values()],
        }
        print(json.dumps(said), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
