# Looks for a secret of the host in the environment, in /proc, and in all memory that it was forked with.
# What it plants itself it finds; what the host was given in its environment was never here.
# %% prints
# 3% raises PermissionError
# > True
def holes(pattern):
    """How often the pattern is in the memory of this process."""
    count = 0
    C.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: or it could not look at itself
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in maps:
            start, end = (int(each, 16) for each in line.split()[0].split("-"))
            if line.split()[1][0] != "r" or "[v" in line:
                continue
            while start < end:
                size = min(end - start, 1 << 20)
                try:
                    memory.seek(start)
                    count += len(re.findall(pattern, memory.read(size)))
                except (OSError, OverflowError):
                    pass
                start += size
    return count


# a class of one letter, so that the pattern itself is not what is found
def pattern(half):
    return re.compile(b"canary-[" + half[:1].encode() + b"]" + half[1:].encode())


planted = bytes.fromhex(PLANTED_HEX)
print(holes(pattern(planted.decode()[7:])) > 0)
# %% prints
# 3% raises PermissionError
# > 0
print(holes(pattern(SECRET_HALF)))
# %% prints
# 3% raises PermissionError
# > False False
print("CANARY_SECRET" in str(os.environ), SECRET_HALF in open("/proc/self/environ").read())
# %% prints
# > {'INPUT_DIR': '/workspace/in', 'OUTPUT_DIR': '/workspace/out', 'HOME': '/workspace'}
# > []
print({name: os.environ[name] for name in ("INPUT_DIR", "OUTPUT_DIR", "HOME")})
print(sorted(set(os.environ) - set(ENVIRONMENT)))
