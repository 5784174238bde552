"""Mutants: every patch fits the code as it is, the killers kill a sample and nothing but mutants, what is stale is named."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lifecycle.audit import Law
from lifecycle.testing import mutants
from lifecycle.testing.mutants import MUTANTS, ROOT
from lifecycle.testing.mutants_killers import NEAR, Killers, ProbeFailed, Trial, run_tests, suite_for
from lifecycle.testing.mutants_logs import IN_LOGS, Why, in_logs
from lifecycle.testing.mutants_plant import FAULTS, Mutant, StaleMutant, copy_library, plant

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_patch_fits_the_code_as_it_is(mutant: Mutant) -> None:
    """What a mutant changes stands in its file exactly once, and the patched file is Python that does something else."""
    mutant.patched(ROOT)
    assert mutant.says.endswith(".")


def test_every_class_of_faults_has_a_mutant() -> None:
    """Names are unique, and no class is left out."""
    assert len(BY_NAME) == len(MUTANTS) >= 100
    assert {mutant.fault for mutant in MUTANTS} == set(FAULTS)


def test_every_mutant_has_tests_that_are_there() -> None:
    """The tests that are run against a mutant exist in the checkout."""
    named = {test for mutant in MUTANTS for test in suite_for(mutant)}
    assert [test for test in sorted(named) if not (ROOT / test).exists()] == []
    assert named == set(suite_for(None))
    assert {mutant.file for mutant in MUTANTS} <= set(NEAR) | {"lifecycle/runtime/jobs.py"}


SAMPLE = {  # quickly found, each by another law
    "kv_alone_decides": ("simulator", "garbled", "outcome"),
    "tail_released_twice": ("simulator", "quiescence", "slots"),
}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_is_killed_without_the_tests(name: str) -> None:
    """What is planted is found by the law that it breaks, and the logs alone show it."""
    trial = Killers(ROOT, None).trial(BY_NAME[name])
    assert (trial.killer, trial.found, trial.audit) == SAMPLE[name]


def test_the_test_that_fails_is_named(tmp_path: Path) -> None:
    """The first test that fails in a copy kills; where none fails, nobody does."""
    tests = tmp_path / "here" / "tests"
    tests.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md"):
        (tests.parent / name).write_text("")
    rule = "from lifecycle.version import VERSION\ndef test_rule():\n    assert VERSION != 'bad'\n"
    (tests / "test_rule.py").write_text(rule)
    copy_library(ROOT, tmp_path / "copy", tests)
    assert run_tests(tmp_path / "copy", ["tests/test_rule.py"]) is None
    (tmp_path / "copy" / "lifecycle" / "version.py").write_text("VERSION = 'bad'\n")
    assert run_tests(tmp_path / "copy", ["tests/test_rule.py"]) == "test_rule.py::test_rule"
    with pytest.raises(ProbeFailed, match="cannot run the tests"):
        run_tests(tmp_path / "copy", ["tests/test_that_is_not_there.py"])


def test_the_library_as_it_is_survives() -> None:
    """Nothing planted, nothing found: it is not the copying that kills."""
    assert Killers(ROOT, None, seeds=2).trial(None).killer is None


def test_a_stale_mutant_is_named(tmp_path: Path) -> None:
    """Code that is not there any more, there twice, no Python afterwards, or the same as before is an error by name."""
    (tmp_path / "rule.py").write_text("a = 1\nb = 2\nb = 2\n")
    for old, new, why in (("c = 3", "c = 4", "0 times"), ("b = 2", "b = 3", "2 times"), ("a = 1", "a = (", "no Python"),
                          ("a = 1", "a = 1  # as it was", "changes nothing")):  # fmt: skip
        with pytest.raises(StaleMutant, match=f"odd.*{why}"):
            Mutant("odd", "A", "rule.py", old, new, "Odd.").patched(tmp_path)


def test_a_mutant_is_planted_in_the_copy_alone(tmp_path: Path) -> None:
    """The library itself stays as it is."""
    mutant = BY_NAME["kv_alone_decides"]
    before = (ROOT / mutant.file).read_text()
    copy_library(ROOT, tmp_path, None)
    plant(mutant, tmp_path)
    assert (tmp_path / mutant.file).read_text() == mutant.patched(ROOT) != before
    assert (ROOT / mutant.file).read_text() == before


def test_a_survivor_fails_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The table names who killed what, a survivor in capitals, and the exit status is 1."""
    killed, survivor = MUTANTS[:2]

    def trial(self: Killers, mutant: Mutant | None) -> Trial:
        killer = "simulator" if mutant is killed else None
        return Trial(mutant, killer, "garbled" if killer else "", "outcome" if killer else None, 1.5)

    monkeypatch.setattr(Killers, "trial", trial)
    assert mutants.main(["--only", killed.name, "--only", survivor.name, "--no-tests"]) == 1
    shown = capsys.readouterr().out
    assert "without tests" in shown
    assert f"{killed.name:<28}  A" in shown
    assert "SURVIVES" in shown
    assert "2 mutants, 1 killed, 1 survive" in shown
    assert mutants.main(["--only", killed.name, "--markdown"]) == 0
    shown = capsys.readouterr().out
    assert f"| {killed.name} | A |" in shown
    assert f"| {in_logs(killed.name)} |" in shown
    assert "1 mutant, 1 killed, 0 survive" in shown


def test_a_library_that_fails_by_itself_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a killer kills the library as it is, no verdict on a mutant is worth anything: status 2."""
    monkeypatch.setattr(Killers, "trial", lambda self, mutant: Trial(mutant, "simulator", "balance", None, 1.0))
    assert mutants.main(["--sample", "1", "--no-tests"]) == 2
    assert "the library as it is fails: simulator: balance" in capsys.readouterr().err


def test_a_sample_is_always_the_same_and_spread() -> None:
    """The same mutants each time, of several files; all of them if that many are asked for."""
    chosen = mutants.sample(5)
    assert chosen == mutants.sample(5)
    assert len({mutant.file for mutant in chosen}) >= 3
    assert mutants.sample(len(MUTANTS)) == list(MUTANTS)


def test_the_command_lists_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` says what each does, `--check` that all fit; an unknown name is an error."""
    assert mutants.main(["--list"]) == 0
    assert MUTANTS[0].says in capsys.readouterr().out
    assert mutants.main(["--check"]) == 0
    assert f"{len(MUTANTS)} patches fit" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        mutants.main(["--only", "nobody"])
    assert "there is no mutant nobody" in capsys.readouterr().err


def test_the_command_names_what_is_stale(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is tried where a patch does not fit: status 2, and every stale one named."""
    odd = [Mutant(name, "A", MUTANTS[0].file, "no such code", "", "Odd.") for name in ("odd", "odder")]
    monkeypatch.setattr(mutants, "MUTANTS", (*odd, MUTANTS[0]))
    assert mutants.main([]) == 2
    shown = capsys.readouterr().err
    assert "mutant odd:" in shown
    assert "mutant odder:" in shown


def test_the_table_has_a_line_for_every_mutant() -> None:
    """The page beside the tests names each mutant once, with its class, its file, and what a log alone can show of it."""
    page = (Path(__file__).parent / "MUTANTS.md").read_text()
    lines = [line.removesuffix(" |").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [[*cells[:3], cells[-1]] for cells in lines] == [
        [f"| `{mutant.name}`", mutant.fault, f"`{mutant.file}`", in_logs(mutant.name)] for mutant in MUTANTS
    ]
    shown = sum(isinstance(found, Law) for found, _ in IN_LOGS.values())
    assert f"{shown} of them can be seen in the logs alone" in page


def test_every_mutant_is_settled_for_the_logs() -> None:
    """For each there is a law that shows it or a reason why none can, and a line; each reason is one of a few, and is used."""
    assert list(IN_LOGS) == [mutant.name for mutant in MUTANTS]
    assert {found for found, _ in IN_LOGS.values() if isinstance(found, Why)} == set(Why)
    assert not [name for name, (_, says) in IN_LOGS.items() if not says or says.endswith(".")]


def test_a_reader_that_goes_away_is_no_error() -> None:
    """Whoever closes the pipe ends the command without a word, with the status of that signal."""
    command = [sys.executable, "-u", "-m", "lifecycle.testing.mutants", "--list"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before it has begun to write
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE
