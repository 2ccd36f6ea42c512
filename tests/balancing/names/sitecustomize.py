# SPDX-License-Identifier: Apache-2.0
"""On a service's PYTHONPATH: names that end in .test are read from the file $TEST_NAMES, one a line with its addresses.

Stands in for a cluster's DNS, whose answers change while the service runs.
"""

import os
import socket
from pathlib import Path
from typing import Any

resolve = socket.getaddrinfo


def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
    if not str(host).endswith(".test"):
        return resolve(host, port, *args, **kwargs)
    lines = Path(os.environ["TEST_NAMES"]).read_text().splitlines()
    names = {name: addresses for name, *addresses in map(str.split, lines)}
    return [info for address in names.get(str(host), []) for info in resolve(address, port, *args, **kwargs)]


socket.getaddrinfo = getaddrinfo
