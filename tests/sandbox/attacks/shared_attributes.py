# Changes modes, owners and times of files of the host, which Landlock does not know.
# The files stay as they are; its own it may have as it likes, or is told so.
#: rungs=3
# %% prints
# > DONE
open("/workspace/own", "w").close()
print(said(lambda: os.chmod("/workspace/own", 0o700)))
# %% prints
# > done
import shutil

for path in (CANARY + "/untouched", CANARY, SOCKET, sys.executable, os.__file__, "/workspace/..", "/"):
    said(lambda: os.chmod(path, 0o777))
    said(lambda: os.chown(path, os.getuid(), os.getgid()))
    said(lambda: os.utime(path, (1, 1)))
    said(lambda: os.setxattr(path, "user.x", b"x"))
    said(lambda: os.truncate(path, 0))
file = os.open(os.__file__, os.O_RDONLY)
said(lambda: os.fchmod(file, 0))
said(lambda: os.utime(file, (1, 1)))
print("done")
# %% prints
# > True True
# > ['copy', 'own']
print(os.stat(os.__file__).st_mtime > 1, os.access(os.__file__, os.R_OK))
shutil.copy2("/workspace/own", "/workspace/copy")
print(sorted(name for name in os.listdir("/workspace") if name not in ("in", "out")))
