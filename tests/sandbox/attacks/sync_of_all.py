# Has the host write out all that it has not written yet, again and again: all others would wait for that.
# It does nothing, and says that it went well; what is written to a file of one's own is another thing.
# %% prints
# > DONE
own = os.open("/workspace/own", os.O_CREAT | os.O_RDWR)
print(said(lambda: os.fsync(own)))
# %% prints
# > ['DONE']
# > True
syncfs = {"x86_64": 306, "aarch64": 267}[os.uname().machine]
began = time.monotonic()
results = {said(os.sync) for _ in range(2_000)} | {said(lambda: syscall(syncfs, own)) for _ in range(2_000)}
print(sorted(results))
print(time.monotonic() - began < 1)
