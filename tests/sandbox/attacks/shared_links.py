# Takes files of the host into its own folder, and its own to others.
# A file is where it is: neither a name nor the file itself can be carried over.
#: rungs=3
# %% prints
# > DONE DONE
open("/workspace/own", "w").close()
print(said(lambda: os.link("/workspace/own", "/tmp/own")), said(lambda: os.rename("/tmp/own", "/workspace/out/own")))
# %% prints
# > []
ways = [
    lambda: os.link(os.__file__, "/workspace/os"),
    lambda: os.link(CANARY + "/untouched", "/workspace/canary"),
    lambda: os.link("/etc/passwd", "/workspace/passwd"),
    lambda: os.rename(CANARY + "/untouched", "/workspace/canary"),
    lambda: os.rename("/workspace/own", "/workspace/../own"),
    lambda: os.rename("/workspace", "/workspace/../elsewhere"),
    lambda: os.rmdir("/tmp"),
    lambda: os.mkdir("/workspace/../new"),
    lambda: os.symlink("x", "/workspace/../link"),
    lambda: os.listdir("/workspace/.."),
    lambda: os.listdir("/workspace/../.."),
    lambda: open("/workspace/../x", "w"),
    lambda: os.open("/workspace/..", os.O_RDONLY | os.O_TMPFILE) if hasattr(os, "O_TMPFILE") else os.stat("/x/y"),
]
print([number for number, way in enumerate(ways) if said(way) == "DONE"])
