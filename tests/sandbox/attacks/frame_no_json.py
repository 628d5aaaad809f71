# Sends what is no JSON: bytes at random, constants that JSON lacks, numbers without end, nothing at all.
# The container is killed for each.
# %% prints
# > {'a': [None, True, 1.5]}
print(await echo(a=[None, True, 1.5]))
# %% dies violation: no JSON
forge(b"\xff\xfe\xfd not json")
time.sleep(10)
# %% new dies violation: NaN is not JSON
forge(b'{"t":"call","id":1,"name":"echo","args":{"a":NaN}}')
time.sleep(10)
# %% new dies violation: no JSON
forge(b'{"t":"call","id":' + b"9" * 10_000 + b',"name":"echo","args":{}}')
time.sleep(10)
# %% new dies violation: no JSON
forge(b"")
time.sleep(10)
# %% new dies violation: no JSON
forge(b"\xff" * (4 << 20))
time.sleep(10)
