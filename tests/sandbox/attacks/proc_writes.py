# Writes to its own entries of /proc, to the settings of the kernel, and to its triggers.
# Each is refused.
# %% prints
# > DONE
print(said(lambda: open("/workspace/file", "w").write("x")))
# %% prints
# > []
own = """
    mem oom_score_adj oom_adj comm clear_refs uid_map gid_map setgroups coredump_filter
    timerslack_ns autogroup sched attr/current attr/exec projid_map timens_offsets
""".split()
print([each for each in own if said(lambda: open(f"/proc/self/{each}", "r+b", buffering=0)) == "DONE"])
# %% prints
# > []
settings = [os.path.join(folder, name) for folder, _, names in os.walk("/proc/sys") for name in names]
print([each for each in settings if said(lambda: open(each, "wb")) == "DONE"])
# %% prints
# 3% raises PermissionError
# > []
others = [
    f"/proc/{name}" for name in os.listdir("/proc") if not name.isdigit() and os.path.isfile(f"/proc/{name}")
]
print([each for each in others if said(lambda: open(each, "r+b", buffering=0)) == "DONE"])
# %% prints
# > []
deep = [
    os.path.join(folder, name)
    for top in ("irq", "bus", "driver", "fs", "acpi", "scsi")
    for folder, _, names in os.walk(f"/proc/{top}")
    for name in names
]
print([each for each in deep if said(lambda: open(each, "r+b", buffering=0)) == "DONE"])
