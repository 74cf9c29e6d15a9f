"""docs/contract.md names everything that users can give to the real binary and get from it."""

import json
import re
import unittest

from tool import ROOT, SCENARIOS, TINY, ToolTest, strict_json

CONTRACT = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
COMMANDS = ("run", "support", "explain", "validate", "compile", "gate", "calibrate", "scales",
            "device", "report", "list")
# They have a short form, which the contract names.
SHORT = {"--help", "--quiet", "--verbose", "--output"}


def block(opening):
    """The fenced block of the contract that begins so."""
    return CONTRACT[CONTRACT.index(opening):].split("```")[1]


def documented_keys(text):
    """Dotted keys of the YAML of section 1, which has at most one section a key."""
    keys, section = set(), ""
    for line in text.splitlines():
        line = line.split("#")[0]
        match = re.match(r"( *)([a-z0-9_.]+):(.*)", line)
        if not match:
            continue
        indent, key, rest = match.groups()
        section = section if indent else ""
        keys.add(section + key)
        inline = re.match(r" *\{(.*)\}", rest)
        for inner in re.findall(r"([a-z0-9_]+):", inline.group(1)) if inline else []:
            keys.add(f"{section}{key}.{inner}")
        if not indent and not rest.strip():
            section = key + "."
    return keys


def schema_keys(schema, prefix=""):
    keys = set()
    for key, value in schema.get("properties", {}).items():
        keys |= {prefix + key} | schema_keys(value, f"{prefix}{key}.")
    return keys


def members_of(value):
    """Names of all members, but for what the scenario names."""
    if isinstance(value, list):
        return set().union(*map(members_of, value))
    if not isinstance(value, dict):
        return set()
    inner = [members_of(part) for key, part in value.items()
             if key not in ("problem", "file_hashes", "cases")]
    return set(value).union(*inner)


class Contract(ToolTest):
    def test_section_1_has_every_key_of_the_schema_and_no_other(self):
        schema = json.loads((SCENARIOS / "schema.json").read_text(encoding="utf-8"))
        documented = documented_keys(block("```yaml\nschema: 1"))
        of_files = {key for key in documented if not key.startswith("sweep.")}
        self.assertEqual(of_files, schema_keys(schema) - {"sweep.batch"})

    def test_every_backend_is_in_section_2(self):
        listed = self.expect(0, "list", "backends").out
        names = re.findall(r"^ *([A-Z0-9_]+)  ", listed, re.MULTILINE)
        self.assertGreater(len(names), 10)
        for name in names:
            self.assertIn(f"`{name}`", CONTRACT)

    def test_every_command_and_option_is_in_the_contract(self):
        for command in COMMANDS:
            self.assertIn(f"`attnbench {command}", CONTRACT)
            options = set(re.findall(r"--[a-z][a-z-]+", self.expect(0, command, "--help").out))
            for option in options - SHORT:
                self.assertRegex(CONTRACT, rf"{option}(?![a-z-])")

    def test_every_member_of_a_result_file_is_in_section_4(self):
        self.write("tiny.yaml", TINY)
        self.expect(0, "run", "tiny.yaml", "--json", "results.json")
        members = members_of(strict_json((self.dir / "results.json").read_text(encoding="utf-8")))
        self.assertIn("samples_us", members)
        described = block('```\n{ "schema_version"')
        for member in members:
            self.assertIn(f'"{member}"', described)


if __name__ == "__main__":
    unittest.main()
