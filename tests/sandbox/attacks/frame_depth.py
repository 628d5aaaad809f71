# Nests values deeper than a reader can follow.
# The container is killed, and the host's stack is none the worse.
# %% prints
# > {'a': [[[[[[[[]]]]]]]]}
print(await echo(a=[[[[[[[[]]]]]]]]))
# %% dies violation: no JSON
forge(b'{"t":"call","id":1,"name":"echo","args":{"a":' + b"[" * 2_000_000 + b"]" * 2_000_000 + b"}}")
time.sleep(10)
# %% new dies violation: nested more than 64 deep
forge(b'{"t":"call","id":1,"name":"echo","args":{"a":' + b"[" * 70 + b"]" * 70 + b"}}")
time.sleep(10)
# %% new dies violation: no JSON
forge(b'{"a":' * 800_000)
time.sleep(10)
