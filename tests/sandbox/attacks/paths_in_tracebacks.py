# Looks for paths of the host in tracebacks, modules, settings of the interpreter, and its arguments.
# All is at neutral places.
# %% raises ZeroDivisionError
def inner():
    1 / 0


inner()
# %% prints
# 3% skipped
# > ['/opt/python', '/opt/treadle']
# > True
places = [each.__file__ for each in sys.modules.values() if getattr(each, "__file__", None)]
print(sorted({"/".join(each.split("/")[:3]) for each in places}))
neutral = ("/workspace", "/opt/python/lib", "/opt/treadle", "/opt/packages")
print(all(each.startswith(neutral) for each in sys.path if each))
# %% prints
# 3% skipped
# > /opt/python /opt/python /opt/python
# > True
print(sys.prefix, sys.base_prefix, sys.exec_prefix)
print(sys.executable.startswith("/opt/python/bin/python3"))


# %% prints
# > []
def texts():
    import asyncio
    import traceback

    kept = []

    C.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: or it could not look at itself
    for name in ("cmdline", "environ"):
        if os.access(f"/proc/self/{name}", os.R_OK):  # where there are no namespaces, nothing of it is open
            said(lambda: kept.append(open(f"/proc/self/{name}").read()))
    yield from kept
    yield repr((sys.argv, sys.orig_argv, sys.path, sys.flags, sys.path_importer_cache))
    try:
        json.loads("{")
    except ValueError as error:
        yield "".join(traceback.format_exception(error))
    try:
        asyncio.run(None)
    except ValueError as error:
        yield "".join(traceback.format_exception(error))


print([host for host in HOST_PATHS for text in texts() if host in text])
