# Takes all rights from the root folder, which belongs to its user.
# Either that is refused, or the container ends; PID 1 does not go on blind.
#: limit_s=3
# %% prints
# > DONE
os.mkdir("/workspace/folder")
print(said(lambda: os.chmod("/workspace/folder", 0)))
# %% dies exit
# 3b% stopped
try:
    os.chmod("/", 0)
except PermissionError:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(10)
