# Makes threads with a table of descriptors of their own: what they hold would not be seen in that of the process.
# A thread shares the table, and cannot leave it.
# %% prints
# > 1
# > DONE
# > 0
done = []
starting = threading.Thread(target=done.append, args=(1,))
starting.start()
starting.join()
print(*done)
CLONE, CLOSE_RANGE = {"x86_64": 56, "aarch64": 220}[os.uname().machine], 436
print(said(lambda: syscall(CLOSE_RANGE, 1000, 1001, 0)))
print(subprocess.run(["/bin/sh", "-c", "exit 0"], close_fds=True).returncode)


# %% prints
# > [1]
def thread_with_a_table(more):
    try:
        # CLONE_VM, CLONE_SIGHAND, CLONE_THREAD; were it not refused, it had its parent's stack, and this died
        syscall(CLONE, 0x100 | 0x800 | 0x10000 | more, 0, 0, 0, 0)
    except OSError as error:
        os._exit(error.errno)


# CLONE_FS, CLONE_SYSVSEM
print(sorted({child(lambda: thread_with_a_table(more)) for more in (0, 0x200, 0x40200)}))
# %% prints
# > EPERM EPERM
# CLOSE_RANGE_UNSHARE, alone and with CLOSE_RANGE_CLOEXEC
print(*[said(lambda: syscall(CLOSE_RANGE, 1000, 1001, flags)) for flags in (2, 6)])
