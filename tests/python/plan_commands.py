"""Commands of lins that plan, as tests run them."""

from click.testing import CliRunner
from lins.cli import main

PROBLEM = ["--model", "7B", "--nodes", "2", "-m", "4"]


def run(*args, code=0):
    result = CliRunner().invoke(main, [str(a) for a in args])
    assert result.exit_code == code, result.output
    return result
