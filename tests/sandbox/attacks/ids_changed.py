# Becomes somebody else, in every way there is.
# Each is refused, and there is no capability to be had.
# %% prints
# > 1000 1000 1000 1000 []
print(os.getuid(), os.geteuid(), os.getgid(), os.getegid(), os.getgroups())
# %% prints
# > setuid EPERM
# > seteuid EPERM
# > setgid EPERM
# > setreuid EPERM
# > setresuid EPERM
# > setresuid to itself EPERM
# > setresgid EPERM
# > setgroups EPERM
# > initgroups EPERM
for name, act in {
    "setuid": lambda: os.setuid(0),
    "seteuid": lambda: os.seteuid(0),
    "setgid": lambda: os.setgid(0),
    "setreuid": lambda: os.setreuid(0, 0),
    "setresuid": lambda: os.setresuid(0, 0, 0),
    "setresuid to itself": lambda: os.setresuid(1000, 1000, 1000),
    "setresgid": lambda: os.setresgid(0, 0, 0),
    "setgroups": lambda: os.setgroups([0]),
    "initgroups": lambda: os.initgroups("root", 0),
}.items():
    attempt(name, act)
# %% prints
# 3% raises PermissionError
# > {'CapInh': 0, 'CapPrm': 0, 'CapEff': 0, 'CapBnd': 0, 'CapAmb': 0, 'NoNewPrivs': 1, 'Seccomp': 2}
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
wanted = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
print({name: int(status[name], 16) for name in wanted})
# %% prints
# > capset EPERM
# > ambient EPERM
# > inheritable EPERM
# > new privileges EINVAL
# > new user EPERM
# > clone EPERM
# > own namespace EPERM
capset, clone = {"x86_64": (126, 56), "aarch64": (91, 220)}[os.uname().machine]
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
attempt("capset", lambda: syscall(capset, header, (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)))


def prctl(*arguments):
    if C.prctl(*map(ctypes.c_ulong, arguments)) < 0:
        raise OSError(ctypes.get_errno(), "")


attempt("ambient", lambda: prctl(47, 2, 21, 0, 0))
attempt("inheritable", lambda: syscall(capset, header, (ctypes.c_uint32 * 6)(0, 0, 1 << 21, 0, 0, 0)))
attempt("new privileges", lambda: prctl(38, 0, 0, 0, 0))
attempt("new user", lambda: C.unshare(0x10000000) and (_ for _ in ()).throw(OSError(ctypes.get_errno(), "")))
attempt("clone", lambda: syscall(clone, 0x10000000 | 17, 0, 0, 0, 0))
handle = os.open("/proc/self/ns/user", os.O_RDONLY)
attempt(
    "own namespace", lambda: C.setns(handle, 0) and (_ for _ in ()).throw(OSError(ctypes.get_errno(), ""))
)
