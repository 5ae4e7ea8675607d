from __future__ import annotations

from gpuwatch.cli import main


def test_the_screen_has_no_json_and_says_who_has(capsys):
    assert main(["tui", "--json"]) == 2
    assert capsys.readouterr().err == (
        "gpuwatch tui: --json: the screen has none; gpuwatch check --json prints findings, and serve a snapshot\n"
    )
