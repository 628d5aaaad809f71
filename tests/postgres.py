"""A PostgreSQL of our own, where its programs are installed."""

import os
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

LIMIT_S = 60


def programs() -> Path | None:
    """The folder of `initdb` and `postgres`."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


class Postgres:
    """A server that runs; each call of `new` makes a database."""

    def __init__(self, bin_: Path, port: int, user: str | None) -> None:
        self.bin, self.port, self.user = bin_, port, user
        self._numbers = count()

    def new(self) -> str:
        name = f"test_{next(self._numbers)}"
        self.command("createdb", name)
        return f"postgresql://treadle:secret-word@127.0.0.1:{self.port}/{name}"

    def command(self, program: str, *arguments: str) -> None:
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "treadle")
        subprocess.run(
            [self.bin / program, *where, *arguments], check=True, capture_output=True, timeout=LIMIT_S
        )


@contextmanager
def running() -> Generator[Postgres]:
    bin_ = programs()
    if bin_ is None:
        pytest.skip("there is no PostgreSQL on this machine (Debian: apt-get install postgresql)")
    user = "postgres" if os.getuid() == 0 else None  # it refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="treadle-postgres-"))
    try:
        if user:
            try:
                shutil.chown(folder, user, user)
            except LookupError:
                pytest.skip(f"PostgreSQL does not run as root, and there is no user `{user}`")
        data = folder / "data"
        made = [bin_ / "initdb", "-D", data, "-U", "treadle", "-A", "trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(made, check=True, capture_output=True, user=user, cwd=folder, timeout=LIMIT_S)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        options = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "fsync": "off",
            "autovacuum": "off",  # its workers would come and go below the process that tests
            "max_connections": 100,
        }
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        pg_ctl = [bin_ / "pg_ctl", "-D", data, "-s", "-w", "-t", str(int(LIMIT_S))]
        # it goes into the background: no child of this process, whose children other tests count
        started = subprocess.run(
            [*pg_ctl, "-l", folder / "log", "-o", shlex.join(settings), "start"],
            check=False,
            user=user,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=LIMIT_S,
        )
        assert not started.returncode, (folder / "log").read_text("utf-8", "replace")
        try:
            yield Postgres(bin_, port, user)
        finally:
            stop = [*pg_ctl, "-m", "immediate", "stop"]
            subprocess.run(stop, check=True, capture_output=True, user=user, cwd=folder, timeout=LIMIT_S)
    finally:
        shutil.rmtree(folder)
