"""`treadle doctor`, as a process of its own, here and on lesser hosts."""

import json
import subprocess
import sys
import unicodedata
from dataclasses import replace
from typing import Any

import pytest

from tests.sandbox import lesser_hosts
from treadle.cli.doctor import shown, told
from treadle.cli.show import printable
from treadle.sandbox.facts import Facts, Failure, Host
from treadle.sandbox.ladder import ABILITIES, report_of

LINUX = Host("linux", "6.12.0", "x86_64", "3.13.0", 0)
GOOD = Facts(
    landlock_abi=7,
    no_cgroup="nothing is mounted",
    watch_s=0.1,
    seen=dict.fromkeys(ABILITIES, True),
)
DOCTOR = ("-X", "dev", "-W", "error", "-m", "treadle.cli.main", "doctor")

needs_namespaces = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not lesser_hosts.can_make_namespaces(),
    reason="needs Linux that lets this user make namespaces",
)


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *DOCTOR, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@needs_namespaces
def test_a_host_that_can_isolate_says_so_and_ends_well() -> None:
    ran = doctor()

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("Code can be run isolated here: rung ")
    for name in ABILITIES:
        assert f"\n{name} " in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 110


@needs_namespaces
def test_json_has_keys_that_stay() -> None:
    ran = doctor("--json")
    found: dict[str, Any] = json.loads(ran.stdout)

    assert (ran.returncode, ran.stderr) == (0, "")
    keys = ["isolated", "rung", "why", "advice", "host", "abilities", "rungs", "cgroup", "name", "lacks"]
    assert list(found) == keys
    assert list(found["host"]) == ["platform", "kernel", "machine", "python", "uid", "landlock_abi", "root"]
    for ability in found["abilities"]:
        assert list(ability) == ["name", "enforced", "by", "why_not_more", "advice"]
    for rung in found["rungs"]:
        assert list(rung) == ["name", "what", "available", "why"]
    assert (found["isolated"], found["rung"]) == (True, 1 if found["cgroup"] else 2)
    assert [rung["name"] for rung in found["rungs"]] == ["1", "2", "3", "3b"]


@needs_namespaces
def test_a_host_on_a_rung_without_namespaces_says_loudly_what_it_lacks() -> None:
    ran = lesser_hosts.on("Docker, ordinary user", *DOCTOR)

    if "Landlock ABI" not in ran.stdout or "needs Landlock ABI 6" in " ".join(ran.stdout.split()):
        pytest.skip("this kernel has an older Landlock")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("Code can be run isolated here: rung 3b, Landlock and seccomp with the uid")
    assert "\nNOT ENFORCED HERE:\n- no disk quota" in ran.stdout
    assert "\ndisk       by watchdog, every 0.1 s" in ran.stdout
    assert "for more: In Docker" in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 110


@needs_namespaces
def test_a_host_without_namespaces_is_told_why_and_what_to_do() -> None:
    ran = lesser_hosts.on("filtered", *DOCTOR)

    words = " ".join(ran.stdout.split())
    assert (ran.returncode, ran.stderr) == (1, "")
    assert words.startswith(
        "Code cannot be run isolated here: refuse. why: making namespaces (unshare) failed"
    )
    assert "EPERM (unshare: Operation not permitted): a filter of system calls (seccomp)" in words
    assert "what to do: In Docker give the container `--security-opt seccomp=FILE`" in words
    assert ran.stdout.count("not enforced") == len(ABILITIES)


@needs_namespaces
def test_a_host_without_namespaces_is_told_in_json_too() -> None:
    ran = lesser_hosts.on("filtered", *DOCTOR, "--json")
    found: dict[str, Any] = json.loads(ran.stdout)

    assert (ran.returncode, ran.stderr) == (1, "")
    assert (found["isolated"], found["rung"]) == (False, None)
    assert not any(each["enforced"] for each in found["abilities"])
    assert not any(each["available"] for each in found["rungs"])


def test_another_system_is_told_what_to_do() -> None:
    code = "import sys; sys.platform = 'darwin'; sys.argv = ['treadle', 'doctor']\n"
    code += "from treadle.cli.main import main; main()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert (ran.returncode, ran.stderr) == (1, "")
    assert "only Linux has, and this is darwin" in " ".join(ran.stdout.split())
    assert "virtual machine" in ran.stdout


def test_nothing_that_the_system_says_drives_the_terminal() -> None:
    failure = Failure("engine", 0, "\x1b[31mred\x07 and\nlines \u202e")
    report = report_of(replace(LINUX, kernel="6\x1b]0;title\x07"), Facts(failure=failure))

    for text in (printable("\n".join(shown(report))), told(report)):
        assert {c for c in text if unicodedata.category(c).startswith("C")} == {"\n"}
    assert json.loads(told(report))["why"] == failure.message


def test_the_table_has_every_ability_with_what_there_is_to_know() -> None:
    text = " ".join(" ".join(shown(report_of(LINUX, GOOD))).split())

    assert "linux, kernel 6.12.0 (x86_64), Python 3.13.0, Landlock ABI 7, uid 0 (root)" in text
    assert "memory watchdog, every 0.1 s no control group can be used: Start the host process" in text
    assert "rung 1 namespaces and a control group: no: nothing is mounted" in text
    assert "rung 2 namespaces, the memory bounded by a watchdog: yes" in text
