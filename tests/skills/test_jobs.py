"""Skills of our own: each is one by the specification, and its code makes its files in a container."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from tests.skills.formats import content
from tests.skills.jobs import JOBS, Job
from treadle.errors import SandboxError
from treadle.execution import Container, Containers
from treadle.sandbox import isolated
from treadle.sandbox.ladder import probe
from treadle.sandbox.packages import BUILT_IN, find
from treadle.sandbox.requirements import parse
from treadle.skills.package import Package, read_folder

SKILLS = "skills"

every_job = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)


@every_job
def test_a_skill_is_one_by_the_specification_and_nothing_about_it_is_odd(job: Job) -> None:
    package = read_folder(job.skill, strict=True)

    assert package.problems == ()
    assert package.manifest.name == job.skill.name


@every_job
def test_what_a_skill_requires_is_in_the_set_that_is_built_in(job: Job) -> None:
    wanted = read_folder(job.skill).files.get("requirements.txt", b"").decode()

    assert set(parse(wanted, "requirements.txt") if wanted else ()) <= set(BUILT_IN["data"].requirements)


def test_every_skill_of_the_examples_has_a_job() -> None:
    folders = {path.parent for path in Path(JOBS["gif-maker"].skill).parent.glob("*/SKILL.md")}

    assert folders <= {job.skill for job in JOBS.values()}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def containers() -> AsyncGenerator[Containers]:
    """One for all tests here: to import what is preloaded takes longer than all that they do."""
    if probe().rung is None:
        pytest.skip(f"no containers here: {probe().why}")
    try:
        find("data")
    except SandboxError as error:
        pytest.skip(str(error))
    async with Containers(isolated(packages="data")) as made:
        yield made


async def with_skill(container: Container, package: Package) -> str:
    """Give `container` the files of a skill; the code that lets its modules be imported."""
    folder = f"{SKILLS}/{package.manifest.name}"
    for path, data in package.files.items():
        await container.put(f"{folder}/{path}", data)
    return f"import sys, os; sys.path.insert(0, os.path.abspath({folder!r}))"


@every_job
async def test_the_code_of_a_skill_makes_its_files_in_a_container(job: Job, containers: Containers) -> None:
    package = read_folder(job.skill)
    container = await containers.create(job.skill.name)
    importing = await with_skill(container, package)
    with anyio.fail_after(60):
        cell = await container.execute(importing + job.code)
        result = await cell.finished()

    assert (result.return_code, result.stderr) == (0, "")
    assert {file.path: content(file.path, file.data) for file in result.files} == job.makes


@every_job
async def test_the_code_that_a_skill_shows_runs_as_it_stands(job: Job, containers: Containers) -> None:
    package = read_folder(job.skill)
    container = await containers.create(job.skill.name)
    importing = await with_skill(container, package)
    [shown] = re.findall(r"^```python\n(.*?)^```$", package.manifest.body, re.DOTALL | re.MULTILINE)
    with anyio.fail_after(60):
        cell = await container.execute(importing + "\n" + shown)
        result = await cell.finished()

    assert (result.return_code, result.stderr) == (0, "")
    assert all(content(file.path, file.data) for file in result.files)
    assert result.files
