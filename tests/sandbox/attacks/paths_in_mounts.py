# Reads in the list of mounts where on the host each comes from.
# It does not say.
# %% prints
# 3% raises PermissionError
# > True
mounts = [line.split() for line in open("/proc/self/mountinfo")]
print(any(fields[4] == "/workspace" or fields[4] == "/" for fields in mounts))
# %% prints
# 3% skipped
# > []
guest = [fields[3] for fields in mounts if fields[4] == "/opt/treadle/treadle"]
print([where for where in guest if where not in ("/", "/treadle")])
