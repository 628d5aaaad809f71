# Calls with numbers that repeat, go back, are negative, or are no numbers.
# The container is killed for each.
# %% prints
# > sent
forge({"t": "call", "id": 5, "name": "echo", "args": {}})
forge({"t": "call", "id": 6, "name": "echo", "args": {}})
time.sleep(0.1)
print("sent")
# %% dies violation: call 5 after 5
forge({"t": "call", "id": 5, "name": "echo", "args": {}})
forge({"t": "call", "id": 5, "name": "echo", "args": {}})
time.sleep(10)
# %% new dies violation: call 4 after 5
forge({"t": "call", "id": 5, "name": "echo", "args": {}})
forge({"t": "call", "id": 4, "name": "echo", "args": {}})
time.sleep(10)
# %% new dies violation: nothing known
forge({"t": "call", "id": -1, "name": "echo", "args": {}})
time.sleep(10)
# %% new dies violation: nothing known
forge({"t": "call", "id": 0, "name": "echo", "args": {}})
time.sleep(10)
# %% new dies violation: nothing known
forge({"t": "call", "id": True, "name": "echo", "args": {}})
time.sleep(10)
# %% new dies violation: nothing known
forge({"t": "call", "id": 1.0, "name": "echo", "args": {}})
time.sleep(10)
# %% new dies violation: nothing known
forge({"t": "call", "id": "1", "name": "echo", "args": {}})
time.sleep(10)
