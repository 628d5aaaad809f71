# Looks at PID 1 through /proc.
# It sees that there is one; what it holds is closed to it.
# %% prints
# 3% raises PermissionError
# > ['1', '2']
# > DONE
print([each for each in os.listdir("/proc") if each.isdigit()])
C.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: or it could not look at itself
print(said(lambda: open("/proc/self/maps").read()))
# %% prints
# > []
# > []
closed = """
    environ mem maps smaps smaps_rollup numa_maps pagemap auxv stack syscall io personality
    map_files fd fdinfo task/1/mem task/1/fd task/1/environ
""".split()


def look(path):
    with open(path, "rb") as file:
        if file.read(1):
            raise RuntimeError(path)


def enter(path):
    os.listdir(path)
    raise RuntimeError(path)


print(
    [
        name
        for name in closed
        if said(lambda: (enter if os.path.isdir(f"/proc/1/{name}") else look)(f"/proc/1/{name}"))
        == "RuntimeError"
    ]
)
links = ["cwd", "root", "exe", *(f"ns/{each}" for each in ("user", "mnt", "pid", "net", "ipc", "uts"))]
print([name for name in links if said(lambda: os.stat(f"/proc/1/{name}")) == "DONE"])
