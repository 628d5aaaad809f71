"""What a host can enforce, found out on this one and on lesser ones."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

import treadle
from tests.sandbox import lesser_hosts
from treadle.errors import CapabilityUnsupported
from treadle.sandbox import ladder
from treadle.sandbox.facts import Attempt, Facts, Failure, Host
from treadle.sandbox.ladder import ABILITIES, Report, check_minimum, probe, report_of

LINUX = Host("linux", "6.12.0", "x86_64", "3.13.0", 1000)
SEEN: dict[str, bool] = dict.fromkeys(ABILITIES, True)
GOOD = Facts(landlock_abi=7, no_cgroup="nothing is mounted", watch_s=0.1, seen=SEEN)
GROUPED = replace(GOOD, cgroup="control group v2", no_cgroup="")

needs_namespaces = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not lesser_hosts.can_make_namespaces(),
    reason="needs Linux that lets this user make namespaces",
)


def refused(report: Report) -> bool:
    return report.rung is None and not any(each.enforced for each in report.abilities)


@needs_namespaces
def test_this_host_is_on_a_rung_and_says_by_what() -> None:
    report = probe()

    assert (report.rung, report.why, report.advice) == (1 if report.cgroup else 2, "", "")
    assert [each.name for each in report.abilities] == list(ABILITIES)
    assert all(each.enforced and each.by for each in report.abilities)
    memory = next(each for each in report.abilities if each.name == "memory")
    assert memory.by == (report.cgroup or "watchdog, every 0.1 s")
    assert bool(memory.why_not_more) is not bool(report.cgroup)
    assert report.host.uid == os.geteuid()


def test_only_what_was_tried_is_said_to_be_there() -> None:
    rungs = {rung.name: rung for rung in report_of(LINUX, GROUPED).rungs}

    assert [name for name, rung in rungs.items() if rung.available] == ["1", "2"]
    assert {rungs[name].why for name in ("3", "3b")} == {"not tried: rung 1 is better"}


def test_a_control_group_makes_it_rung_1_and_else_the_report_says_why_there_is_none() -> None:
    first, second = report_of(LINUX, GROUPED), report_of(LINUX, GOOD)

    assert (first.rung, first.name, first.cgroup) == (1, "1", "control group v2")
    memory = next(each for each in first.abilities if each.name == "memory")
    assert (memory.by, memory.why_not_more, memory.advice) == ("control group v2", "", "")
    assert check_minimum(1, first) is first
    assert (second.rung, second.name, second.cgroup) == (2, "2", "")
    memory = next(each for each in second.abilities if each.name == "memory")
    assert memory.why_not_more == "no control group can be used: nothing is mounted"
    assert "what the watchdog does not see: pipes" in memory.advice
    assert second.rungs[0].why == "nothing is mounted"


@needs_namespaces
def test_looking_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import os; from treadle.sandbox.ladder import probe; report = probe(); "
        "print(report.rung, len(os.listdir('/proc/self/fd')), os.listdir(os.environ['TMPDIR']))"
    )
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(treadle.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
    )

    rung, descriptors, rest = ran.stdout.strip().split(" ", 2)
    assert (rung, descriptors, ran.stderr) == (str(probe().rung), "4", "")
    assert rest == "[]"


def test_a_process_looks_once_unless_it_is_told_to() -> None:
    looked: list[int] = []
    first = probe()

    def look() -> None:
        looked.append(id(probe()))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    if first.lasting:
        assert set(looked) == {id(first)}
    fresh = probe(fresh=True)
    assert fresh is not first
    assert fresh.rung == first.rung


async def test_looking_works_from_a_thread_beside_a_running_loop() -> None:
    with anyio.fail_after(60):
        report = await anyio.to_thread.run_sync(lambda: probe(fresh=True))

    assert report.host.platform == sys.platform


REFUSALS = {
    "filtered": ("a filter of system calls (seccomp) lies on this process", "--security-opt seccomp="),
    "no Landlock": ("failed with ENOSYS (this kernel has no Landlock)", "`landlock` in its `lsm=`"),
    "no user namespaces": ("user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces="),
    "root of a container": ("this root does not have CAP_SYS_ADMIN", "as an ordinary user instead of root"),
    "root of a user namespace": ("has no user ids to give", "as an ordinary user instead of root"),
    "covered /proc": ("a part of /proc is covered", "systempaths=unconfined"),
}
ASK = """
import json
from dataclasses import asdict
from treadle.errors import CapabilityUnsupported
from treadle.sandbox.ladder import check_minimum, probe
report = probe()
try:
    check_minimum()
except CapabilityUnsupported as error:
    print(json.dumps({"error": str(error), **asdict(report)}))
else:
    print(json.dumps(asdict(report)))
"""


@needs_namespaces
@pytest.mark.parametrize("host", REFUSALS)
def test_a_lesser_host_refuses_and_names_the_step_the_reason_and_the_way_out(host: str) -> None:
    ran = lesser_hosts.on(host, "-c", ASK)
    told = json.loads(ran.stdout)

    why, advice = REFUSALS[host]
    assert told["rung"] in (None, 3), ran.stderr
    assert why in (told["why"] or told["rungs"][1]["why"])
    assert advice in told["advice"]
    assert told["lasting"] is True
    if told["rung"] is None:  # it depends on where Python is installed whether rung 3 can be reached
        assert told["why"] in told["error"]
        assert told["advice"] in told["error"]
        assert not any(ability["enforced"] for ability in told["abilities"])
        assert all(rung["why"] for rung in told["rungs"])


@needs_namespaces
@pytest.mark.parametrize("host", ["Docker", "Docker, ordinary user", "no user namespaces"])
def test_a_host_without_namespaces_has_a_rung_that_says_what_it_lacks(host: str) -> None:
    told = json.loads(lesser_hosts.on(host, "-c", ASK).stdout)

    name = "3" if host == "Docker" and os.geteuid() == 0 else "3b"
    if told["host"]["landlock_abi"] < {"3": 4, "3b": 6}[name]:
        pytest.skip(f"Landlock ABI {told['host']['landlock_abi']}")
    assert (told["rung"], told["name"], told["why"]) == (3, name, "")
    assert [rung["name"] for rung in told["rungs"] if rung["available"]] == [name]
    assert all(rung["why"] for rung in told["rungs"] if rung["name"] != name)
    assert all(ability["enforced"] and ability["by"] for ability in told["abilities"])
    assert len(told["lacks"]) >= 6
    assert told["advice"]


def test_a_rung_below_is_used_only_where_it_holds_whole() -> None:
    failed = Facts(failure=Failure("unshare", 1, "unshare: Operation not permitted"), landlock_abi=7)
    whole = Attempt(dict.fromkeys(ABILITIES, True))
    half = Attempt({**dict.fromkeys(ABILITIES, True), "disk": False})
    broken = Attempt(
        failure=Failure("engine", 0, "PermissionError: [Errno 13] Permission denied: '/opt/python'")
    )

    assert report_of(LINUX, replace(failed, shared={"3": whole})).name == "3"
    assert report_of(LINUX, replace(failed, shared={"3": half, "3b": whole})).name == "3b"
    nothing = report_of(LINUX, replace(failed, shared={"3": half, "3b": broken}))
    assert refused(nothing)
    assert nothing.rungs[2].why.endswith("not enforced in it: disk")
    assert "must be able to enter /opt/python" in nothing.rungs[3].why
    assert report_of(LINUX, replace(GOOD, shared={"3": whole})).name == "2"


@pytest.mark.parametrize(("name", "minimum", "enough"), [("3", 3, True), ("3", 2, False), ("3b", 3, False)])
def test_a_minimum_is_a_minimum_without_namespaces_too(name: str, minimum: int, enough: bool) -> None:
    failed = Facts(failure=Failure("unshare", 1, "unshare: Operation not permitted"), landlock_abi=7)
    whole = Attempt(dict.fromkeys(ABILITIES, True))
    report = report_of(LINUX, replace(failed, shared={"3" if name == "3" else "3b": whole}))

    assert check_minimum(None, report) is report
    if enough:
        assert check_minimum(minimum, report) is report
        return
    instead = {"3": "Set minimum_rung to 3 if", "3b": "Leave minimum_rung out if"}[name]
    with pytest.raises(CapabilityUnsupported, match=f"isolates code on rung {name} .*{instead}"):
        check_minimum(minimum, report)


@needs_namespaces
def test_an_ordinary_user_gets_a_rung_too() -> None:
    told = json.loads(lesser_hosts.on("ordinary user", "-c", ASK).stdout)

    assert told["rung"] == (1 if told["cgroup"] else 2), told["why"]
    assert told["host"]["uid"] != 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("sys.executable = '/nowhere/python'", "/nowhere/python"),
        ("sys.executable = '/bin/false'", "the trial ended with status 1"),
        ("ladder.DEADLINE_S = 0.01", "no container was made within 0.01 s"),
    ],
)
def test_a_look_that_fails_is_a_refusal_that_is_not_kept(before: str, words: str) -> None:
    code = f"import sys\nfrom treadle.sandbox import ladder\n{before}\n{ASK}\nassert probe() is not report"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(treadle.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    told = json.loads(ran.stdout)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert (told["rung"], told["lasting"]) == (None, False)
    assert words in told["error"]


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_another_system_refuses_and_names_the_way_out(platform: str) -> None:
    report = report_of(replace(LINUX, platform=platform, uid=None), None)

    assert refused(report)
    assert platform in report.why
    assert "virtual machine" in report.advice
    with pytest.raises(CapabilityUnsupported, match=f"this is {platform}"):
        check_minimum(None, report)


@pytest.mark.parametrize("name", SEEN)
def test_what_was_not_seen_to_hold_is_a_refusal_and_no_smaller_promise(name: str) -> None:
    report = report_of(LINUX, replace(GOOD, seen={**SEEN, name: False}))

    assert refused(report)
    assert report.why.endswith(f"not enforced in it: {name}")


@pytest.mark.parametrize("minimum", [None, 2, 3])
def test_a_minimum_that_is_reached_gives_the_report(minimum: int | None) -> None:
    report = report_of(LINUX, GOOD)

    assert check_minimum(minimum, report) is report


def test_a_minimum_above_is_refused_with_both_rungs_the_reason_and_the_way_out() -> None:
    report = report_of(LINUX, GOOD)

    with pytest.raises(CapabilityUnsupported) as caught:
        check_minimum(1, report)
    assert str(caught.value) == (
        "this host isolates code on rung 2 (namespaces, the memory bounded by a watchdog), and rung 1 "
        "(namespaces and a control group) or better was asked for: nothing is mounted. "
        "Set minimum_rung to 2 if that is enough, or run the code on a host that gives more."
    )


def test_a_host_that_runs_no_code_says_what_was_asked_for() -> None:
    report = report_of(LINUX, Facts(failure=Failure("unshare", 1, "unshare: Operation not permitted")))

    with pytest.raises(
        CapabilityUnsupported, match=r"isolated here \(rung 3 or better was asked for\): making"
    ):
        check_minimum(3, report)


def test_an_old_landlock_is_told() -> None:
    files = report_of(LINUX, replace(GOOD, landlock_abi=4)).abilities[0]

    assert files.enforced
    assert files.why_not_more == (
        "Landlock ABI 4 does not keep signals and abstract sockets in: the namespaces alone do"
    )
    assert "6.12" in files.advice


EXPLAINED: list[tuple[Failure, dict[str, int], str]] = [
    (Failure("unshare", 1, "no"), {"kernel.unprivileged_userns_clone": 0}, "unprivileged_userns_clone is 0"),
    (
        Failure("uid_map", 1, "no"),
        {"kernel.apparmor_restrict_unprivileged_userns": 1},
        "AppArmor takes the rights away",
    ),
    (Failure("clone", 28, "no"), {}, "as many namespaces as this user may have"),
    (Failure("clone", 22, "no"), {}, "built without these namespaces"),
    (Failure("seccomp", 22, "no"), {}, "takes no filters"),
    (Failure("mount", 13, "mount /x: no"), {}, "building a root (mount) failed with EACCES (mount /x: no)"),
    (Failure("machine", 0, "containers need a machine of x86_64"), {}, "need a machine of x86_64"),
    (Failure("deadline", 0, "no container was made within 15 s"), {}, "within 15 s"),
    (Failure("engine", 0, "SandboxError: it ended"), {}, "SandboxError: it ended"),
]


@pytest.mark.parametrize(("failure", "sysctls", "words"), EXPLAINED, ids=lambda each: str(each)[:40])
def test_every_failure_has_a_reason_and_an_advice(
    failure: Failure, sysctls: dict[str, int], words: str
) -> None:
    report = report_of(LINUX, Facts(failure=failure, sysctls=sysctls))

    assert refused(report)
    assert words in report.why
    assert report.advice.endswith((".", "=0", "=1", "'^user.max_'"))


def test_bad_luck_is_looked_at_again() -> None:
    lasting = {
        step: report_of(LINUX, Facts(failure=Failure(step, 0, "no"))).lasting
        for step in ("deadline", "start", "engine", "unshare")
    }

    assert lasting == {"deadline": False, "start": False, "engine": False, "unshare": True}
    assert ladder.DEADLINE_S == 15
