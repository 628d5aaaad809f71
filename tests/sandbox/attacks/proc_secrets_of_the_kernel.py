# Reads what the kernel tells to root alone.
# Each is refused, missing or empty.
# %% prints
# 3> EACCES
# > DONE
print(said(lambda: open("/proc/meminfo").read()))
# %% prints
# > []
secrets = """
    kcore kmsg kpagecount kpageflags kpagecgroup sysrq-trigger slabinfo vmallocinfo timer_list keys
    key-users iomem mtrr
""".split()


def found(name):
    with open(f"/proc/{name}", "rb") as file:
        text = file.read(4096)
    if re.sub(rb"\b0+\b", b"", text).strip() and name not in ("iomem", "key-users", "keys", "mtrr"):
        return True
    return name == "iomem" and any(int(number, 16) for number in re.findall(rb"^\s*([0-9a-f]+)-", text, re.M))


print([each for each in secrets if said(lambda: found(each)) == "DONE" and found(each)])
# %% prints
# 3% raises PermissionError
# > no address
addresses = open("/proc/kallsyms").read(4096) if os.path.exists("/proc/kallsyms") else ""
print("an address" if any(int(line.split()[0], 16) for line in addresses.splitlines()[:-1]) else "no address")
