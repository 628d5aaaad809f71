# Looks for files of the other container, which keeps a secret in /workspace and in /tmp.
# It has a /workspace and a /tmp of its own, and there is no other way.
# %% prints
# > ['a']
open("/workspace/a", "w").write("x")
open("/tmp/a", "w").write("x")
print(sorted(os.listdir("/tmp")))
# %% prints
# 3% skipped
# > []
print(
    [
        path
        for path in (
            "/workspace/mine",
            "/tmp/mine",
            "/.host",
            "/box",
            "/old",
            "/root",
            "/home",
            "/var",
            "/srv",
            "/opt/treadle/tests",
        )
        if os.path.lexists(path)
    ]
)
# %% prints
# 3% raises PermissionError
# > ['bin', 'dev', 'etc', 'lib', 'opt', 'proc', 'run', 'sandbox', 'sbin', 'tmp', 'usr', 'workspace']
# > []
print([each for each in sorted(os.listdir("/")) if each not in ("lib32", "lib64", "libx32")])
print(os.listdir("/run"))
# %% prints
# > []
found = []
for folder, folders, names in os.walk("/"):
    if folder.startswith(("/proc", "/usr", "/opt/python")):
        folders.clear()
        continue
    found += [os.path.join(folder, name) for name in names if name == "mine" or "canary" in name]
print(found)
# %% prints
# 3> EACCES EACCES
# > ENOENT ENOENT
print(said(lambda: open(CANARY + "/untouched").read()), said(lambda: open(CANARY + "/new", "w")))
