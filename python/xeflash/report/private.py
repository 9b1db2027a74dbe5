"""A report without names of users, hosts or paths, whatever a library's message has brought in."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from typing import Any

# The folders of an absolute path; "GB/s", "16/8" and addresses of the web are none.
_FOLDERS = re.compile(r"(?<![\w./])/(?!/)(?:[^\s:/,;'\"()\[\]{}]+/)+")


def without_names(found: Any) -> Any:
    """Returns values of JSON with the last name of each path alone, and no name of the user or the host."""
    home, host = os.path.expanduser("~"), socket.gethostname()
    known = sorted({home, os.getcwd(), tempfile.gettempdir()} - {"/", "~"}, key=len, reverse=True)
    places = re.compile(rf"(?:{'|'.join(map(re.escape, known))})(?![\w-])")
    users = {os.path.basename(home), *(os.environ.get(name, "") for name in ("USER", "LOGNAME"))}
    names = sorted({*users, host, host.partition(".")[0]} - {"", "~"}, key=len, reverse=True)
    words = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])")

    def cleaned(text: str) -> str:
        return words.sub("(name)", _FOLDERS.sub(".../", places.sub("/...", text)))

    def walk(x: Any) -> Any:
        if isinstance(x, str):
            return cleaned(x)
        if isinstance(x, dict):
            # A user may be called as a field is.
            return {key if str(key).isidentifier() else cleaned(str(key)): walk(value) for key, value in x.items()}
        return [walk(item) for item in x] if isinstance(x, list | tuple) else x

    return walk(found)
