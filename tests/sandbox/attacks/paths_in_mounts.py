# Reads in the lists of mounts, of itself and of PID 1, where on the host each comes from.
# They do not say: the lists are empty.
# %% prints
# 3% raises PermissionError
# > True
print("/opt/python" in open("/proc/self/maps").read())
# %% prints
# 3% skipped
# > []
lists = [f"/proc/{of}/{name}" for of in ("self", 1) for name in ("mountinfo", "mounts", "mountstats")]
def text(path):
    try:
        return open(path).read()
    except OSError:
        return ""

print([text(path) for path in lists if text(path)])
# %% prints
# 3% skipped
# > True
print(any(text(path) for path in ("/proc/self/status", "/proc/1/status")))
