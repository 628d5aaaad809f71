# Starts programs that make their caller root, with a library of its own in front.
# They run, and are nobody in particular.
# %% prints
# 3> uid=1000 gid=1000 groups=1000
# > uid=1000(user) gid=1000(user) groups=1000(user)
print(subprocess.run(["id"], capture_output=True, text=True).stdout, end="")
# %% prints
# 3% raises PermissionError
# > []
programs = [
    f"{folder}/{name}" for folder in ("/usr/bin", "/usr/sbin", "/usr/lib") for name in os.listdir(folder)
]
kept = [each for each in programs if os.path.isfile(each) and os.stat(each).st_mode & 0o6000]
code = "import os; print(os.getresuid(), os.getresgid())"
raised = []
for each in kept:
    pid = os.posix_spawn(
        each,
        [each, "--version"],
        {"LD_PRELOAD": "libm.so.6"},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", 1, 0),
            (os.POSIX_SPAWN_OPEN, 2, "/dev/null", 1, 0),
        ],
    )
    try:
        if "Uid:\t0" in open(f"/proc/{pid}/status").read():
            raised.append(each)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
print(raised)
# %% prints
# 3> uid=1000 gid=1000 groups=1000
# > uid=1000(user) gid=1000(user) groups=1000(user)
print(
    subprocess.run(
        ["id"], capture_output=True, text=True, env={"PATH": "/usr/bin", "LD_PRELOAD": "libm.so.6"}
    ).stdout,
    end="",
)
# %% prints
# 3b% raises PermissionError
# > 1000
import shutil

shutil.copy("/usr/bin/id", "/workspace/id")
said(lambda: os.chmod("/workspace/id", 0o6755))
print(subprocess.run(["/workspace/id", "-u"], capture_output=True, text=True).stdout, end="")
