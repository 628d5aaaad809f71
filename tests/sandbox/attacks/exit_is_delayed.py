# Registers whatever runs at an exit: handlers, finalizers, threads that do not end, and all of it sleeps.
# None of it delays the end of the container.
# %% prints
# > ran
import atexit
import weakref

code = "import atexit; atexit.register(print, 'ran')"
print(subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True).stdout, end="")


# %% raises SystemExit
class Kept:
    def __del__(self):
        time.sleep(1000)


kept = Kept()
kept.itself = kept
atexit.register(time.sleep, 1000)
weakref.finalize(sys, time.sleep, 1000)
threading.Thread(target=time.sleep, args=(1000,)).start()
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, lambda *_: time.sleep(1000))
sys.excepthook = sys.unraisablehook = threading.excepthook = lambda *_: time.sleep(1000)
sys.exit(3)
# %% raises ValueError
raise ValueError("the hooks are not asked")
