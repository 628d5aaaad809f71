"""Why a host makes no containers, and what its operator can do."""

import errno

from treadle.sandbox.facts import Facts, Failure

_STEPS = {
    "unshare": "making namespaces (unshare)",
    "clone": "making the namespaces of a container (clone)",
    "uid_map": "mapping a user into the namespace (uid_map)",
    "setuid": "becoming the user of the container",
    "mount": "building a root (mount)",
    "pivot_root": "entering the root (pivot_root)",
    "root": "building the root of a container (mount)",
    "limits": "setting limits and dropping rights",
    "landlock": "closing the files (Landlock)",
    "seccomp": "filtering system calls (seccomp)",
}
_OF_NAMESPACES = ("unshare", "clone", "uid_map", "setuid", "mount", "pivot_root", "root")
REPORT_IT = "If it stays so, please report it, with the output of treadle doctor --json."


def explained(failure: Failure, facts: Facts, *, root: bool) -> tuple[str, str]:
    """Why no container can be made, and what to do."""
    what = _STEPS.get(failure.step)
    number = errno.errorcode.get(failure.errno, "")
    text = failure.message.rstrip(".")
    said = f"{what} failed" + (f" with {number}" if number else "") + f" ({text})" if what else text
    cause, advice = _cause(failure, facts, root=root)
    return f"{said}: {cause}" if cause else said, advice


def _cause(failure: Failure, facts: Facts, *, root: bool) -> tuple[str, str]:
    match failure.step:
        case "machine":
            return "", "Run Treadle on x86_64 or aarch64."
        case "deadline":
            return "", f"Try again when the machine is less busy. {REPORT_IT}"
        case "landlock":
            return (
                "the kernel has no Landlock, or a filter keeps it away",
                "Use a kernel of 5.13 or later with CONFIG_SECURITY_LANDLOCK and `landlock` in its `lsm=` "
                "parameter; in a container, a seccomp profile that allows the calls of Landlock.",
            )
        case "seccomp":
            return "the kernel takes no filters", "Use a kernel with CONFIG_SECCOMP_FILTER."
        case step if step in _OF_NAMESPACES and failure.errno in _DENIALS:
            return _denied(failure, facts, root=root)
        case _:
            return "", REPORT_IT


_DENIALS = (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.ENOSYS, errno.EINVAL)
_DOCKER = (
    "In Docker give the container `--security-opt seccomp=FILE`, a profile that allows unshare, clone, "
    "mount, umount2 and pivot_root with namespaces, and `--security-opt systempaths=unconfined`; "
    "in a systemd service lift RestrictNamespaces= and SystemCallFilter=."
)


def _denied(failure: Failure, facts: Facts, *, root: bool) -> tuple[str, str]:
    """Who does not let namespaces be made or used."""
    if failure.step in ("unshare", "clone") and (off := _off(failure, facts, root=root)):
        return off
    if "mount proc" in failure.message:
        return (
            "a part of /proc is covered, as in Docker containers",
            "Give the container `--security-opt systempaths=unconfined`.",
        )
    if root and failure.step == "uid_map" and facts.nested:
        return (
            "this root is that of a user namespace, as in rootless containers, and has no user ids to give",
            "Run Treadle as an ordinary user instead of root.",
        )
    if facts.filtered:
        return "a filter of system calls (seccomp) lies on this process, as on those of Docker", _DOCKER
    if not root and facts.sysctls.get("kernel.apparmor_restrict_unprivileged_userns"):
        return (
            "AppArmor takes the rights away: kernel.apparmor_restrict_unprivileged_userns is 1",
            "Give the Python that runs Treadle an AppArmor profile with `userns,`; or as root run: "
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        )
    if root and failure.step == "unshare":
        return (
            "this root does not have CAP_SYS_ADMIN, as in containers",
            f"Run Treadle as an ordinary user instead of root. {_DOCKER}",
        )
    return "", f"Look into the log of the kernel for a security module that denies it. {REPORT_IT}"


def _off(failure: Failure, facts: Facts, *, root: bool) -> tuple[str, str] | None:
    """Where the kernel has no user namespaces to give."""
    if facts.sysctls.get("user.max_user_namespaces") == 0:
        return (
            "user namespaces are off: user.max_user_namespaces is 0",
            "As root run: sysctl -w user.max_user_namespaces=15000",
        )
    if not root and facts.sysctls.get("kernel.unprivileged_userns_clone") == 0:
        return (
            "user namespaces are off for ordinary users: kernel.unprivileged_userns_clone is 0",
            "As root run: sysctl -w kernel.unprivileged_userns_clone=1",
        )
    if failure.errno == errno.EINVAL:
        return "the kernel was built without these namespaces", "Use a kernel with CONFIG_USER_NS."
    if failure.errno == errno.ENOSPC:
        return (
            "there are as many namespaces as this user may have",
            "As root raise user.max_user_namespaces and its kin: sysctl -a --pattern '^user.max_'",
        )
    return None
