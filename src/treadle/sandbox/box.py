"""What a container is made of: plain values, the same on the host and inside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

RungName: TypeAlias = Literal["1", "2", "3", "3b"]
"""Ways to set a container apart, the one that enforces most first."""
MIB = 1 << 20
MAX_LOCKS = 20_000
"""On files, of one container."""
MAX_PACKET_BYTES = 128 * 1024
"""Of a message between the host and a zygote."""
WORKSPACE, INPUT, OUTPUT = "/workspace", "/workspace/in", "/workspace/out"
ALIAS = "/sandbox"
"""Another name of the first."""
SKILLS = "/skills"
"""Folders that are shown (`sandbox.shown`) are in there."""
PYTHON, PACKAGES, TREADLE = "/opt/python", "/opt/packages", "/opt/treadle"
"""Where the interpreter, the packages and our own guest stand inside: no path of the host is seen there."""
CACHE = ".cache"
"""In the folder of packages: what is laid out in the temporary folder for the zygote."""
TEMPORARY = "/tmp"  # noqa: S108
CACHES = {"MPLCONFIGDIR": "matplotlib", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config"}
"""Folders in the temporary one, by the variables that name them: what libraries write for themselves."""


def environment(python: str = PYTHON, root: str = "", path: Sequence[str] = ()) -> Mapping[str, str]:
    """What the code finds in its environment.

    Args:
        python: the folder of the interpreter.
        root: where the container's files are; empty: it has a root of its own.
        path: folders of what can be imported beside the standard library.
    """
    temporary = root + TEMPORARY
    return {
        "PATH": f"{python}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": root + WORKSPACE,
        "LANG": "C.UTF-8",
        "TMPDIR": temporary,
        "INPUT_DIR": root + INPUT,
        "OUTPUT_DIR": root + OUTPUT,
        "PYTHONDONTWRITEBYTECODE": "1",
        # sets have one order everywhere; nothing is lost, as a container's code could read a random one
        "PYTHONHASHSEED": "0",
        "LD_LIBRARY_PATH": f"{python}/lib",  # of an interpreter that is built as a shared library
        "MPLBACKEND": "Agg",
        **({"PYTHONPATH": ":".join(path)} if path else {}),  # the runner reads it as Python does
        **{name: f"{temporary}/{folder}" for name, folder in CACHES.items()},
        # a preloaded library must start no threads
        **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    }


ENVIRONMENT = environment()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a container may use."""

    memory_mib: int = 512
    """All processes and files together."""
    cpu_s: float = 60.0
    """Of running code, for one cell."""
    processes: int = 64
    """And threads."""
    disk_mib: int = 256
    files: int = 20_000
    """Files and folders."""
    file_mib: int = 64
    """The largest file."""
    open_files: int = 256
    output_kib: int = 64
    """Of what one cell prints, as far as it is kept; of more, the beginning and the last quarter."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the host inside a container."""

    source: str
    target: str
    """Absolute, inside."""
    writable: bool = False
    shown: bool = False
    """Whether it is one of `sandbox.shown`: files that all may read, and that the code may import."""


@dataclass(frozen=True, slots=True)
class Box:
    """A container to be made."""

    limits: Limits
    mounts: list[Mount]
    environment: Mapping[str, str]
    seccomp: bytes
    """The packed filter."""
    root: str = ""
    """Of the host: the folder that stands for the container's root, where it cannot have one."""
    readable: Sequence[str] = ()
    """Of the host: what else the code may read there."""
