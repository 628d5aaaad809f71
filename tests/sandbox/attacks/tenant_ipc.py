# Leaves and looks for memory, semaphores and queues that processes share by name.
# None of these can be made, but shared memory among its own files.
# %% prints
# > 7
import mmap

shared = mmap.mmap(-1, 4096)
child(lambda: shared.__setitem__(0, 7))
print(shared[0])
# %% prints
# > shmget EPERM
# > semget EPERM
# > msgget EPERM
# > mq_open EPERM
# > memfd_create EPERM
# > keyctl EPERM
# > shm_open True
numbers = {"x86_64": (29, 64, 68, 240, 319, 250), "aarch64": (194, 190, 186, 180, 279, 219)}[
    os.uname().machine
]
shmget, semget, msgget, mq_open, memfd_create, keyctl = numbers
attempt("shmget", lambda: syscall(shmget, 4711, 4096, 0o1666))
attempt("semget", lambda: syscall(semget, 4711, 1, 0o1666))
attempt("msgget", lambda: syscall(msgget, 4711, 0o1666))
attempt("mq_open", lambda: syscall(mq_open, b"queue", 0o102, 0o666, 0))
attempt("memfd_create", lambda: syscall(memfd_create, b"x", 0))
attempt("keyctl", lambda: syscall(keyctl, 0, -3, 0))
opened = said(lambda: open("/dev/shm/x", "w").close())
print("shm_open", opened == "EACCES" or os.path.realpath("/dev/shm/x") == "/tmp/x")
