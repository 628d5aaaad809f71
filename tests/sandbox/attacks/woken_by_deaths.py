# Asks to be woken when somebody dies, which may be after all was stopped: the death of a parent or of a child.
# A process is told of its children's deaths by SIGCHLD, or not at all, and of its parent's never.
# %% prints
# > 3
# > DONE
# > 4
# > DONE DONE
CLONE = {"x86_64": 56, "aarch64": 220}[os.uname().machine]


def clone(flags):
    pid = syscall(CLONE, flags, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0x40000000)  # __WALL: also of a child that says nothing


print(child(lambda: os._exit(3)))
print(said(lambda: threading.Thread(target=int).start()))
print(subprocess.run(["/bin/sh", "-c", "exit 4"]).returncode)
print(said(lambda: clone(signal.SIGCHLD)), said(lambda: clone(0)))


# %% prints
# > ['EPERM']
def parents_death(number):
    if C.prctl(1, number, 0, 0, 0):  # PR_SET_PDEATHSIG
        raise OSError(ctypes.get_errno(), "refused")


signals = [number for number in range(1, 65) if number != signal.SIGCHLD]
print(sorted({said(lambda: parents_death(number)) for number in (*signals, signal.SIGCHLD)}))
# %% prints
# > ['EPERM']
print(sorted({said(lambda: clone(number)) for number in signals}))
# %% prints
# > ['EPERM']
# with other flags beside: CLONE_PARENT, CLONE_VM | CLONE_VFORK, CLONE_FILES
flags = (0x8000, 0x4100, 0x400)
print(sorted({said(lambda: clone(each | signal.SIGCONT)) for each in flags}))
