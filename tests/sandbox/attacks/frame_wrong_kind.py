# Sends frames of kinds that only the host sends, of unknown kinds, of no kind, and one that comes once only.
# The container is killed for each.
# %% prints
# > {'a': 1}
forge({"t": "call", "id": 1, "name": "echo", "args": {}})
time.sleep(0.1)
os.read(3, 1 << 16)
print({"a": 1})
# %% dies violation: ready a second time
forge({"t": "ready"})
time.sleep(10)
# %% new dies violation: nothing known
forge({"t": "exec", "id": 1, "code": "", "tools": []})
time.sleep(10)
# %% new dies violation: nothing known
forge({"t": "ret", "id": 1, "value": 1})
time.sleep(10)
# %% new dies violation: nothing known
forge([])
time.sleep(10)
# %% new dies violation: nothing known
forge({"t": "call", "id": 1, "name": "echo", "args": []})
time.sleep(10)
