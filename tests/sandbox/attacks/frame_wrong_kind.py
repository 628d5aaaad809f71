# Sends frames of kinds that only the host sends, of unknown kinds, and of no kind.
# The container is killed for each. A second `ready` says nothing, and is let pass.
# %% prints
# > sent
forge({"t": "ready"})
time.sleep(0.1)
print("sent")
# %% dies violation: nothing known
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
