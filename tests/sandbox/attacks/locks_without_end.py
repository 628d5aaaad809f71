# Takes locks on ranges of files without end: each is memory of the kernel, and no process's.
# They are counted, and the container is ended. Locks of open files, which have no owner, cannot be had.
#: limit_s=20
# %% prints
# > [(1,)]
# > DONE
import fcntl
import sqlite3


def take(file, count):
    for number in range(count):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2 * number)


database = sqlite3.connect("/workspace/database")
with database:
    database.execute("create table t (x)")
    database.execute("insert into t values (1)")
print(database.execute("select x from t").fetchall())
with open("/workspace/few", "w") as few:
    print(said(lambda: take(few, 1_000)))
# %% prints
# > EPERM EPERM
lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0)
with open("/workspace/few", "w") as few:
    # F_OFD_SETLK, F_OFD_SETLKW
    print(*[said(lambda: fcntl.fcntl(few, command, lock)) for command in (37, 38)])
# %% dies memory: locks
kept = [open(f"/workspace/{number}", "w") for number in range(30)]
for each in kept:
    take(each, 2_000)
time.sleep(3)
print("one process holds them")
# %% new dies memory: locks
import fcntl

told, tell = os.pipe()
for process in range(30):
    if os.fork() == 0:
        with open(f"/workspace/{process}", "w") as file:
            for number in range(2_000):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2 * number)
            os.write(tell, b"x")
            time.sleep(20)
holding = 0
while holding < 30:
    holding += len(os.read(told, 30))
time.sleep(3)
print("they hold", holding)
