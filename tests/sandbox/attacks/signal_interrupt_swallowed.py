# Catches the interruption of the cell, again and again.
# It is told once; after the grace time the container is killed.
#: limit_s=0.5
# %% stopped
try:
    time.sleep(10)
finally:
    print("cleaned up")
# > cleaned up
# %% dies timeout
while True:
    try:
        time.sleep(10)
    except BaseException:
        pass
