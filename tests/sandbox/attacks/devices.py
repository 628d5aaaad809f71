# Looks for devices, makes some, and orders the ones that it has about.
# There are five, which do nothing to anybody, and links to the process's own descriptors.
# %% prints
# > b'\x00'
print(open("/dev/zero", "rb").read(1))
# %% prints
# 3% raises PermissionError
# > ['fd', 'full', 'null', 'random', 'shm', 'stderr', 'stdin', 'stdout', 'urandom', 'zero']
print(sorted(os.listdir("/dev")))
# %% prints
# 3b> mknod EPERM
# 3b> TIOCSTI EPERM
# 3b> chmod DONE
# 3b> tty EACCES
# 3b> entropy refused
# 3> mknod EPERM
# 3> TIOCSTI EPERM
# 3> chmod EPERM
# 3> tty EACCES
# 3> entropy refused
# > mknod EPERM
# > TIOCSTI EPERM
# > chmod EPERM
# > tty ENXIO
# > entropy refused
import fcntl
import stat

attempt("mknod", lambda: os.mknod("/workspace/disk", stat.S_IFBLK | 0o666, os.makedev(254, 0)))
attempt("TIOCSTI", lambda: fcntl.ioctl(0, 0x5412, b"x"))
attempt("chmod", lambda: os.chmod("/dev/null", 0o777))
attempt("tty", lambda: open("/dev/tty")) if os.path.exists("/dev/tty") else print("tty ENXIO")
entropy = said(lambda: fcntl.ioctl(os.open("/dev/urandom", os.O_WRONLY), 0x5204, 0))
print("entropy", "refused" if entropy in ("EPERM", "EACCES") else entropy)
