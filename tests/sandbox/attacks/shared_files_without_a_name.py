# Writes to files that it removed already: no walk finds them.
# They count, and the container is killed at its limit.
#: rungs=3 limit_s=8
# %% prints
# > DONE
print(said(lambda: os.unlink(os.open("/workspace/a", os.O_CREAT) and "/workspace/a")))
# %% dies disk: more than 48 MiB
kept = []
for number in range(12):
    kept.append(open(f"/workspace/{number}", "wb"))
    os.unlink(f"/workspace/{number}")
    kept[-1].write(bytes(8 << 20))
    kept[-1].flush()
    time.sleep(0.05)
time.sleep(5)
