# Fails with exceptions that cannot be shown, or do something when they are.
# The host learns what class they are of; one that never ends is ended at the time limit.
#: limit_s=0.5
# %% raises Quiet
class Quiet(Exception):
    def __str__(self):
        return "quiet"


raise Quiet


# %% raises Broken
class Broken(Exception):
    def __str__(self):
        raise SystemExit

    __repr__ = __str__


raise Broken


# %% raises Huge
class Huge(Exception):
    def __str__(self):
        return "x" * 5_000_000


raise Huge


# %% raises Odd
class Meta(type):
    __name__ = property(lambda cls: time.sleep(1000))


class Odd(Exception, metaclass=Meta):
    pass


raise Odd


# %% dies timeout
class Endless(Exception):
    def __str__(self):
        while True:
            pass


raise Endless
