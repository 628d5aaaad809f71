# Hides processes from /proc, so that nobody reads what they map, and takes shared memory there.
# They are not hidden, and all of it counts: the container is killed at its limit. Without namespaces it is
# killed for hiding, or, where it is the host's own user, cannot make such a program.
#: memory_mib=192 limit_s=8 file_mib=48
# %% prints
# 3b% raises PermissionError
# > 3
import shutil

shutil.copy(os.path.realpath(sys.executable), "/tmp/unreadable")
os.chmod("/tmp/unreadable", 0o111)
environment = {**os.environ, "PYTHONHOME": sys.base_prefix}
hidden = ["/tmp/unreadable", "-Sc"]
print(subprocess.run([*hidden, "raise SystemExit(3)"], env=environment).returncode)
# %% dies memory: more than 192 MiB
# 3% dies violation: could not be looked into
# 3b% raises PermissionError
take = """
import mmap, time
kept = mmap.mmap(-1, 200 << 20)
for at in range(0, len(kept), 4096):
    kept[at] = 1
kept.madvise(mmap.MADV_DONTNEED)
time.sleep(10)
"""
taking = [subprocess.Popen([*hidden, take], env=environment) for _ in range(2)]
time.sleep(3)
print("held 400 MiB")
# %% new dies memory: more than 192 MiB
for _ in range(2):
    if os.fork() == 0:
        C.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        import mmap

        kept = mmap.mmap(-1, 200 << 20)
        for at in range(0, len(kept), 4096):
            kept[at] = 1
        kept.madvise(mmap.MADV_DONTNEED)
        time.sleep(10)
time.sleep(3)
print("held 400 MiB")
