"""Runs the tests that Transformers has for all its models, with xeflash's attention in the place of sdpa.

    python tests/suites/common_tests.py                                   # the source distribution is fetched by pip
    python tests/suites/common_tests.py --source transformers-5.24.0.tar.gz

A source distribution has test_modeling_common.py, but not the tests of each model: a class of tests is made of every
decoder here, with the tiny configurations of families.py. They need parameterized.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path
from typing import Any

import pytest

TESTS = "attention or attn or sdpa or eager or batching or gradient or training or hidden_states or cache or generate"
TESTS = f"({TESTS}) and not output_attentions"  # xeflash forms no weights, and says so
# What test_modeling_common.py imports of folders that are not distributed.
MISSING = {
    "exporters/test_export.py": "class ExportTesterMixin: pass\n",
    "generation/test_utils.py": "class GenerationTesterMixin: pass\n",
}
MODULE = "from common_tests import test_classes\nglobals().update(test_classes())\n"
THEIRS = "XEFLASH_SUITE_THEIRS"  # in the environment: sdpa stays what it is
calls = 0


def put_in_place_of_sdpa() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from xeflash.integrations import transformers as ours

    def counted(*arguments: Any, **named: Any) -> Any:
        global calls
        calls += 1
        return ours.attention_function(*arguments, **named)

    ours.register()
    AttentionInterface._global_mapping["sdpa"] = counted
    AttentionMaskInterface._global_mapping["sdpa"] = ours.mask_function


class ModelTester:
    """What the tests ask about a model, and its inputs."""

    batch_size, seq_length, is_training = 2, 7, True

    def __init__(self, config: Any) -> None:
        self._config = config
        text = config.get_text_config(decoder=True)
        self.hidden_size, self.num_hidden_layers = text.hidden_size, text.num_hidden_layers
        self.num_attention_heads = getattr(text, "num_attention_heads", 0)

    def get_config(self) -> Any:
        return type(self._config).from_dict(self._config.to_dict())

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        from tiny_models import prompts

        return self.get_config(), prompts(self.batch_size, self.seq_length)


def test_classes() -> dict[str, type]:
    """A class of tests for each family that has one configuration."""
    if THEIRS not in os.environ:
        put_in_place_of_sdpa()
    from families import FAMILIES, NotTiny, tiny_config
    from tests.test_modeling_common import ModelTesterMixin
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    class Tests(ModelTesterMixin):
        def setUp(self) -> None:
            try:
                config = tiny_config(self.family)
            except NotTiny as why:
                self.skipTest(str(why))
            self.all_model_classes = (MODEL_FOR_CAUSAL_LM_MAPPING[type(config)],)
            self.model_tester = ModelTester(config)

        def test_flash_attention_equivalence_of_ours(self) -> None:
            self.flash_attn_inference_equivalence("xe_attention", "left")
            self.flash_attn_inference_equivalence("xe_attention", "right")

    return {
        f"Test_{family}": type(f"Test_{family}", (Tests, unittest.TestCase), {"family": family})
        for family in FAMILIES
        if not CONFIG_MAPPING[family].sub_configs
    }


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"xeflash's attention was called {calls} times")


def fetched(folder: Path) -> Path:
    """The source distribution of the Transformers that is installed."""
    import transformers

    asked = [
        "--no-deps",
        "--no-binary",
        "transformers",
        "--no-build-isolation",
        f"transformers=={transformers.__version__}",
    ]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *asked], check=True)
    return next(folder.glob("transformers-*.tar.gz"))


def main() -> int:
    import sampled

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, metavar="FILE", help="a source distribution of Transformers")
    options, words = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(options.source or fetched(folder)) as archive:
            for member in archive.getmembers():
                _, _, place = member.name.partition("/")
                if place.startswith("tests/") and member.isfile():
                    member.name = place
                    archive.extract(member, folder, filter="data")
        for place, text in MISSING.items():
            (folder / "tests" / place).parent.mkdir(exist_ok=True)
            (folder / "tests" / place).write_text(text)
        (folder / "test_families.py").write_text(MODULE)
        wanted = [] if "-k" in words else ["-k", TESTS]
        path = (folder, Path(__file__).parent.parent)
        failed = sampled.run(folder, "-p", "common_tests", "test_families.py", *wanted, *words, path=path)
        if failed:
            print("the same tests with torch's sdpa:", flush=True)
            theirs = sampled.run(folder, "-p", "common_tests", *failed, path=path, **{THEIRS: "1"})
            failed = [name for name in failed if name not in theirs]
    print(f"{len(failed)} failed with xeflash's attention alone:", *failed)
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
