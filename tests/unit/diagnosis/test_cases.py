"""Failures that people met, each with the files they had: the cause comes first, and no look-alike of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuwatch.diagnosis.causes.ids import KINDS
from gpuwatch.diagnosis.causes.verdict import CHAINS
from gpuwatch.diagnosis.registry import DIAGNOSES
from tests.unit.diagnosis.incidents import Verdict, every_case

EVERY = every_case()
STARTS_REFUSED = {"host_memory_oversubscribed", "rope_context", "tp_imbalance", "host_shm_exhaustion", "xid_software"}
"""Warnings that are critical in the files of an incident where the engine ended, or refused to start, over them."""
RUNBOOK = Path(__file__).parents[3] / "docs" / "runbook.md"


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_the_cause_of_a_case_comes_first_and_no_look_alike_does(case, tmp_path):
    verdict = Verdict(tmp_path, case.files, case.flags)
    right = {case.want, *case.also}
    shown = [finding.id for finding in verdict.findings if finding.severity != "info" or finding.id in right]
    assert shown, verdict.not_enough
    assert shown[0] in right
    assert case.want in shown or shown[0] in case.also
    assert not verdict.firm or verdict.firm[0] not in case.never


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_every_finding_of_a_case_has_evidence_a_cause_and_its_own_severity_or_less(case, tmp_path):
    order = ["info", "warning", "critical"]
    for finding in Verdict(tmp_path, case.files, case.flags).findings:
        assert finding.evidence
        assert finding.cause.endswith(".")
        ends_it = finding.id in STARTS_REFUSED and finding.severity == "critical"
        assert ends_it or order.index(finding.severity) <= order.index(KINDS[finding.id].severity)
        assert 0 < finding.confidence < 1
        assert finding.advice


def test_the_cases_cover_every_family():
    assert len(EVERY) >= 72
    assert len({case.want for case in EVERY}) >= 40


def test_a_finding_has_the_severity_of_the_alerts_with_its_id():
    both = KINDS.keys() & DIAGNOSES.keys()
    assert len(both) > 40
    assert {id_: KINDS[id_].severity for id_ in both} == {id_: DIAGNOSES[id_].severity for id_ in both}


def test_every_finding_of_a_post_mortem_has_a_section_in_the_runbook():
    sections = set(re.findall(r"^## `(\w+)`$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE))
    assert KINDS.keys() <= sections


def test_the_chain_of_causes_names_findings_only():
    for row in CHAINS:
        assert {row.cause, *row.symptoms} <= KINDS.keys(), row
        assert row.cause not in row.symptoms
