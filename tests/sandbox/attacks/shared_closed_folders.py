# Fills a folder that it closed to itself, and one so deep that no path reaches it.
# Both count, and are removed in the end.
#: rungs=3 limit_s=8
# %% prints
# > DONE
print(said(lambda: os.makedirs("/workspace/" + "a/" * 50)))
# %% dies disk: more than 48 MiB
os.umask(0)
os.mkdir("/workspace/closed", 0o700)
files = [open(f"/workspace/closed/{number}", "wb", buffering=0) for number in range(8)]
os.chmod("/workspace/closed", 0)
for file in files:
    file.write(bytes(8 << 20))
time.sleep(5)
# %% new dies disk: nested too deeply
os.chdir("/workspace")
for _ in range(1500):
    os.mkdir("deep")
    os.chdir("deep")
time.sleep(5)
# %% new dies disk: more than 2000 files
for number in range(2500):
    os.mkdir(f"/workspace/{number}")
time.sleep(5)
