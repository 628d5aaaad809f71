"""Hosts that can do less than this one: processes that give something up before they start Python again."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import treadle

LIMIT_S = 60
_BEGIN = """
import os, sys
from treadle.sandbox.kernel import libc, seccomp
from pathlib import Path

def into_users(inside):
    uid, gid = os.geteuid(), os.getegid()
    libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny", "ascii")
    Path("/proc/self/uid_map").write_text(f"{uid if inside is None else inside} {uid} 1", "ascii")
    Path("/proc/self/gid_map").write_text(f"{gid if inside is None else inside} {gid} 1", "ascii")

def expose(*paths):
    "What stands in the folder of root alone, for others too: in a mount namespace of our own."
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount(None, "/", None, libc.MS_REC | libc.MS_SLAVE)
    held = [(path, os.open(path, os.O_PATH)) for path in paths]
    for path in paths:
        for above in reversed(Path(path).parents):
            if not above.stat().st_mode & 1:
                libc.mount("exposed", str(above), "tmpfs", 0, "mode=755")
                break
    for path, fd in held:
        if not Path(path).exists():
            Path(path).mkdir(parents=True)
            libc.mount(f"/proc/self/fd/{fd}", path, None, libc.MS_BIND | libc.MS_REC)

def ordinary():
    if os.geteuid() == 0:
        expose(*PATHS)
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

def docker():
    "As the default profile of Docker: no namespaces, no mounts, fourteen capabilities."
    kept = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
    if os.geteuid() == 0:
        for number in set(range(41)) - set(kept):
            libc.prctl(libc.PR_CAPBSET_DROP, number)
        libc.set_capabilities(kept)
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    numbers = {
        "x86_64": {"unshare": 272, "mount": 165, "umount2": 166, "setns": 308, "pivot_root": 155},
        "aarch64": {"unshare": 97, "mount": 40, "umount2": 39, "setns": 268, "pivot_root": 41},
    }[libc.MACHINE]
    refused = [*numbers.values(), *range(428, 434), 442]
    made = [(seccomp.LOAD, 0, 0, 0)]
    for number in refused:
        made += [(seccomp.JEQ, 0, 1, number), (seccomp.RET, 0, 0, seccomp.ERRNO | 1)]
    machine = seccomp.MACHINES[libc.MACHINE]
    made += [(seccomp.JEQ, 0, 1, machine.clone3), (seccomp.RET, 0, 0, seccomp.ERRNO | 38)]
    made += [(seccomp.JEQ, 0, 3, machine.clone), (seccomp.LOAD, 0, 0, 16), (seccomp.JSET, 0, 1, 0x7E020000)]
    made += [(seccomp.RET, 0, 0, seccomp.ERRNO | 1), (seccomp.RET, 0, 0, seccomp.ALLOW)]
    seccomp.install(seccomp.packed(made))

def go():
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
DOCKER = f"PATHS = []\n{_BEGIN}\ndocker()\ngo()"
"""Code that goes on as if in a plain Docker container."""
_HOSTS: Mapping[str, str] = {
    "ordinary user": "ordinary()",
    "filtered": """
libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
seccomp.install(seccomp.packed(seccomp.program(seccomp.MACHINES[libc.MACHINE], sockets=True)))
""",
    "no Landlock": """
libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
seccomp.install(seccomp.packed([
    (seccomp.LOAD, 0, 0, 0), (seccomp.JEQ, 0, 1, 444), (seccomp.RET, 0, 0, seccomp.ERRNO | 38),
    (seccomp.RET, 0, 0, seccomp.ALLOW),
]))
""",
    "Docker": """
if os.geteuid() == 0:
    expose(*PATHS)
docker()
""",
    "Docker, ordinary user": """
ordinary()
docker()
""",
    "no user namespaces": """
ordinary()
libc.prctl(libc.PR_SET_DUMPABLE, 1)
into_users(None)
Path("/proc/sys/user/max_user_namespaces").write_text("0", "ascii")
""",
    "root of a container": """
if os.geteuid() != 0:
    into_users(0)
libc.drop_bounding_set()
libc.set_capabilities()
""",
    "root of a user namespace": "into_users(0)",
    "covered /proc": """
if os.geteuid() == 0:
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount(None, "/", None, libc.MS_REC | libc.MS_SLAVE)
else:
    into_users(None)
libc.mount("cover", "/proc/sys", "tmpfs", 1)
""",
}


def on(host: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments on a host of this kind."""
    source = str(Path(treadle.__file__).parents[1])
    paths = [sys.base_prefix, sys.prefix, source]
    path = [source, *(each for each in sys.path if each.endswith("-packages"))]
    return subprocess.run(
        [sys.executable, "-c", f"PATHS = {paths!r}\n{_BEGIN}\n{_HOSTS[host]}\ngo()", *arguments],
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def can_make_namespaces() -> bool:
    """Asked of the kernel, and not of the code under test."""
    code = f"{_BEGIN}\ninto_users(0)"
    source = str(Path(treadle.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True).returncode == 0
