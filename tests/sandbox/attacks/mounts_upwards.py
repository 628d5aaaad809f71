# Climbs out of its root by way of descriptors, links and `..`.
# All ways lead to the same root.
# %% prints
# > DONE
print(said(lambda: os.chdir("/workspace")))
# %% prints
# 3% raises PermissionError
# > True
# > True
# > True
root = os.stat("/")
handle = os.open("/", os.O_RDONLY)
for _ in range(40):
    handle = os.open("..", os.O_RDONLY, dir_fd=handle)
    if handle > 30:
        os.closerange(4, 30)
print(os.path.samestat(os.fstat(handle), root))
os.fchdir(handle)
os.chdir("../" * 1000)
print(os.path.samestat(os.stat("."), root))
print(
    all(
        os.path.samestat(os.stat(each), root)
        for each in (
            "/proc/self/root",
            "/proc/self/root/..",
            "/proc/self/cwd/../..",
            "/proc/thread-self/root",
        )
    )
)
# %% prints
# > []
os.symlink("../" * 50 + "etc/shadow", "/workspace/up")
os.symlink("/proc/1/root/etc/shadow", "/workspace/by-init")
os.symlink("/proc/self/root/../../.host/etc/shadow", "/workspace/by-self")
print([each for each in ("up", "by-init", "by-self") if said(lambda: open(f"/workspace/{each}")) == "DONE"])
