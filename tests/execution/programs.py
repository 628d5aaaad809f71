"""Programs as models write them: each prints the same in a container as in plain Python."""

PROGRAMS: dict[str, str] = {
    "csv": """
import csv, io
text = "name,age\\nAnn,31\\nBob,27\\n"
rows = list(csv.DictReader(io.StringIO(text)))
print(sorted(rows, key=lambda row: int(row["age"]))[0]["name"])
""",
    "csv to a file and back": """
import csv
with open("out.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerows([["a", "b"], [1, 2], ["x,y", 'say "hi"']])
with open("out.csv", newline="") as file:
    print(list(csv.reader(file)))
""",
    "statistics": """
import statistics
data = [2.5, 3.5, 1.0, 8.25]
print(statistics.mean(data), statistics.median(data), round(statistics.stdev(data), 6))
""",
    "dataclasses": """
from dataclasses import asdict, dataclass, field, replace
@dataclass(frozen=True, order=True)
class Point:
    x: int
    y: int = 0
    tags: list = field(default_factory=list, compare=False)
print(asdict(replace(Point(1, tags=["a"]), y=5)), max(Point(1, 2), Point(2, 1)))
""",
    "regex": """
import re
log = "2026-01-02 ERROR disk full\\n2026-01-03 INFO ok\\n2026-01-04 ERROR net down"
print(re.findall(r"^(\\S+) ERROR (.*)$", log, re.MULTILINE))
""",
    "decimal": """
from decimal import ROUND_HALF_UP, Decimal, getcontext
getcontext().prec = 12
print((Decimal("19.99") * 3 / 7).quantize(Decimal("0.01"), rounding=ROUND_HALF_UP))
""",
    "fractions": """
from fractions import Fraction
print(sum(Fraction(1, n) for n in range(1, 8)))
""",
    "generators": """
def primes():
    found = []
    n = 2
    while True:
        if all(n % p for p in found):
            found.append(n)
            yield n
        n += 1
import itertools
print(list(itertools.islice(primes(), 10)))
""",
    "context managers": """
from contextlib import ExitStack, contextmanager, suppress
@contextmanager
def named(name):
    print("open", name)
    try:
        yield name
    finally:
        print("close", name)
with suppress(ZeroDivisionError), ExitStack() as stack:
    for name in "ab":
        stack.enter_context(named(name))
    1 / 0
""",
    "retries": """
class Flaky:
    def __init__(self): self.left = 2
    def __call__(self):
        if self.left:
            self.left -= 1
            raise ConnectionError(f"{self.left} left")
        return "ok"
call = Flaky()
for attempt in range(5):
    try:
        print(attempt, call())
        break
    except ConnectionError as error:
        print(attempt, error)
else:
    print("gave up")
""",
    "nested functions": """
def counter():
    count = 0
    def step(by=1):
        nonlocal count
        count += by
        return count
    return step
a, b = counter(), counter()
print(a(), a(5), b())
""",
    "functions that call each other at top level": """
def is_even(n): return n == 0 or is_odd(n - 1)
def is_odd(n): return n != 0 and is_even(n - 1)
print(is_even(10), is_odd(7))
""",
    "classes": """
from abc import ABC, abstractmethod
class Shape(ABC):
    @abstractmethod
    def area(self): ...
    def __lt__(self, other): return self.area() < other.area()
class Square(Shape):
    def __init__(self, side): self.side = side
    def area(self): return self.side ** 2
    def __repr__(self): return f"Square({self.side})"
print(sorted([Square(3), Square(1)]), Square.__mro__[1].__name__, Square.__module__)
""",
    "enums": """
from enum import Enum, Flag, auto
class Color(Enum):
    RED = "r"
    BLUE = "b"
class Right(Flag):
    READ = auto()
    WRITE = auto()
print(Color("b"), [each.name for each in Color], Right.READ | Right.WRITE in Right)
""",
    "a subprocess runs a script": """
import subprocess, sys
with open("script.py", "w") as file:
    file.write("import sys\\nprint(sum(map(int, sys.argv[1:])))\\nsys.exit(3)")
ran = subprocess.run([sys.executable, "script.py", "1", "2"], capture_output=True, text=True)
print(ran.returncode, ran.stdout.strip())
""",
    "a shell": """
import subprocess
command = "printf 'b\\\\na\\\\n' | sort | head -1"
print(subprocess.run(command, shell=True, capture_output=True, text=True).stdout)
""",
    "json": """
import json
tree = {"b": [1, 2.5, None, True], "a": {"ü": "\\u20ac"}}
print(json.dumps(tree, sort_keys=True, ensure_ascii=False), json.loads(json.dumps(tree)) == tree)
""",
    "dates": """
from datetime import date, datetime, timedelta, timezone
start = date(2026, 1, 31)
print(start + timedelta(days=29), (date(2026, 12, 24) - start).days, start.strftime("%a %d %b"))
print(datetime(2026, 1, 1, tzinfo=timezone.utc).isoformat())
""",
    "counters and defaults": """
from collections import Counter, defaultdict, deque
words = "the cat the dog a cat the end".split()
groups = defaultdict(list)
for word in words:
    groups[len(word)].append(word)
print(Counter(words).most_common(2), dict(groups), deque(range(5), maxlen=3))
""",
    "grouping": """
from itertools import accumulate, groupby, pairwise
rows = [("a", 1), ("a", 2), ("b", 5)]
print({key: sum(n for _, n in part) for key, part in groupby(rows, key=lambda row: row[0])})
print(list(accumulate([1, 2, 3])), [b - a for a, b in pairwise([1, 4, 9])])
""",
    "matching": """
def describe(value):
    match value:
        case {"kind": "point", "at": [x, y]} if x == y:
            return f"diagonal {x}"
        case [first, *rest]:
            return f"{first} and {len(rest)}"
        case str() | bytes():
            return "text"
        case _:
            return "other"
print([describe(each) for each in ({"kind": "point", "at": [2, 2]}, [1, 2, 3], "x", 5)])
""",
    "exceptions with causes": """
import traceback
try:
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("no such key") from error
except ValueError as error:
    print(repr(error), repr(error.__cause__))
    print(traceback.format_exc().count("Traceback"))
""",
    "exception groups": """
try:
    raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])
except* ValueError as group:
    print("values", group.exceptions)
except* TypeError as group:
    print("types", group.exceptions)
""",
    "caches": """
from functools import cache, partial, reduce
@cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
print(fib(80), reduce(lambda a, b: a * b, range(1, 8)), partial(pow, 2)(10))
""",
    "sqlite": """
import sqlite3
db = sqlite3.connect("sales.db")
db.execute("create table sales (region text, amount real)")
db.executemany("insert into sales values (?, ?)", [("N", 10), ("S", 5), ("N", 2.5)])
db.commit()
print(db.execute("select region, sum(amount) from sales group by region order by 1").fetchall())
""",
    "archives": """
import io, tarfile, zipfile
with zipfile.ZipFile("a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("dir/one.txt", "one" * 100)
with zipfile.ZipFile("a.zip") as archive:
    print(archive.namelist(), len(archive.read("dir/one.txt")))
with tarfile.open("a.tar.gz", "w:gz") as archive:
    info = tarfile.TarInfo("x"); info.size = 3
    archive.addfile(info, io.BytesIO(b"abc"))
print(tarfile.open("a.tar.gz").getnames())
""",
    "paths": """
from pathlib import Path
import tempfile
root = Path(tempfile.mkdtemp())
(root / "a" / "b").mkdir(parents=True)
(root / "a" / "b" / "x.txt").write_text("hello")
print([str(path.relative_to(root)) for path in sorted(root.rglob("*"))])
print((root / "a/b/x.txt").stat().st_size, Path("a/../b.tar.gz").suffixes)
""",
    "hashes and encodings": """
import base64, hashlib, hmac, zlib
data = b"treadle"
print(hashlib.sha256(data).hexdigest()[:16], base64.b64encode(data), zlib.crc32(data))
print(hmac.new(b"k", data, "sha1").hexdigest()[:8])
""",
    "random with a seed": """
import random
random.seed(7)
print([random.randint(1, 6) for _ in range(5)], random.sample(range(100), 3))
""",
    "numbers": """
import math, cmath
print(math.gcd(84, 36), math.comb(10, 3), round(math.dist((0, 0), (3, 4)), 2))
print(cmath.sqrt(-4), 7 // -2, -7 % 3)
print(f"{1234567.891:,.2f} {0.000012:e} {255:#x} {5:>4}|{'x':^5}|")
""",
    "text": """
import string, textwrap, unicodedata
print(textwrap.fill("the quick brown fox jumps over the lazy dog", 20))
print(unicodedata.normalize("NFD", "é").encode("utf-8"), string.Template("$a b").substitute(a=1))
print("straße".upper(), "ß".casefold() == "ss".casefold(), "a,b,,c".split(","))
""",
    "difflib": """
import difflib
print("\\n".join(difflib.unified_diff(["a", "b"], ["a", "c"], lineterm="", n=0)))
""",
    "xml and html": """
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
tree = ET.fromstring("<r><i n='1'>a</i><i n='2'>b</i></r>")
print([(each.get("n"), each.text) for each in tree.iter("i")])
class Links(HTMLParser):
    def handle_starttag(self, tag, attrs): print(tag, dict(attrs))
Links().feed("<a href='/x'>y</a>")
""",
    "threads": """
import threading
from concurrent.futures import ThreadPoolExecutor
lock, total = threading.Lock(), 0
def add(n):
    global total
    with lock:
        total += n
with ThreadPoolExecutor(4) as pool:
    list(pool.map(add, range(100)))
print(total)
""",
    "asyncio": """
import asyncio
async def work(n, queue):
    for _ in range(n):
        await asyncio.sleep(0)
    await queue.put(n)
async def main():
    queue = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        for n in (3, 1, 2):
            group.create_task(work(n, queue))
    print([queue.get_nowait() for _ in range(3)])
    try:
        await asyncio.wait_for(asyncio.sleep(5), 0.01)
    except TimeoutError:
        print("late")
asyncio.run(main())
""",
    "heap and bisect": """
import bisect, heapq
print(heapq.nsmallest(2, [5, 1, 4]), bisect.bisect([1, 3, 5], 4))
graph = {"a": {"b": 1, "c": 4}, "b": {"c": 2}, "c": {}}
best, queue = {}, [(0, "a")]
while queue:
    cost, node = heapq.heappop(queue)
    if node not in best:
        best[node] = cost
        for other, step in graph[node].items():
            heapq.heappush(queue, (cost + step, other))
print(best)
""",
    "typing at runtime": """
from typing import Literal, NamedTuple, Protocol, TypedDict, get_type_hints, runtime_checkable
class Row(NamedTuple):
    a: int
    b: str = "x"
class Config(TypedDict, total=False):
    mode: Literal["r", "w"]
@runtime_checkable
class Closes(Protocol):
    def close(self) -> None: ...
print(Row(1)._asdict(), sorted(get_type_hints(Config)), isinstance(open("t", "w"), Closes))
""",
    "pickle and copy": """
import copy, pickle
class Node:
    def __init__(self, value): self.value, self.next = value, self
node = pickle.loads(pickle.dumps(Node(3)))
print(node.value, node.next is node, copy.deepcopy(node).value)
""",
    "operators and descriptors": """
class Meters:
    def __init__(self, n): self.n = n
    def __add__(self, other): return Meters(self.n + other.n)
    def __radd__(self, other): return self if other == 0 else NotImplemented
    def __format__(self, spec): return f"{self.n:{spec or '.1f'}} m"
    @property
    def km(self): return self.n / 1000
total = sum([Meters(1), Meters(2500)])
print(f"{total} {total:.3f} {total.km}")
""",
    "output on both streams": """
import sys, warnings
print("to stdout", end="!\\n", flush=True)
print("to stderr", file=sys.stderr)
sys.stdout.write("written\\n")
print(*"abc", sep="-")
""",
    "input that is not there": """
try:
    input("? ")
except EOFError:
    print("nobody types")
""",
    "exit in the middle": """
import atexit, sys
print("before")
if True:
    sys.exit(0)
print("never")
""",
}
