"""What README and docs say to type: every command and option exists, every scenario is valid, and what
needs no GPU does what is said."""

import re
import unittest

from tool import ROOT, SCENARIOS, ToolTest, strict_json

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Shapes of definitions, not files to be run.
NO_SCENARIOS = {"contract.md", "semantics.md"}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"(?:^|[ /])attnbench ([a-z]+)\b(.*)")


def blocks(document, language):
    return [text for name, text in BLOCK.findall(document.read_text(encoding="utf-8"))
            if name == language]  # fmt: skip


def joined_lines(text):
    """Lines of a shell block, continued ones as one, without comments."""
    lines = text.replace("\\\n", " ").splitlines()
    return [re.sub(r"(^|\s)#.*", "", line).strip() for line in lines]


# A trace of the public data set's form.
BURSTGPT = "\n".join(
    ["Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
     *(f"{second},,1,ChatGPT,100,{50 + second % 7},{150 + second % 7},Conversation log"
       for second in range(600))]) + "\n"  # fmt: skip


class Documents(ToolTest):
    def help_of(self, command, known={}):
        if command not in known:
            known[command] = self.expect(0, command, "--help", COLUMNS="200").out
        return known[command]

    def test_every_command_and_option_in_a_shell_block_exists(self):
        checked = 0
        for document in DOCUMENTS:
            for line in (line for text in blocks(document, "sh") for line in joined_lines(text)):
                for command, rest in PROGRAM.findall(line):
                    with self.subTest(f"{document.name}: {line}"):
                        text = self.help_of(command)
                        for option in re.findall(r"(?<=\s)(--[a-z][a-z0-9-]*|-[a-zA-Z](?=\s))", rest):
                            self.assertRegex(text, rf"(?m)^  (-\w,)?{option}(,|\s|$)|^  {option},")
                            checked += 1
        self.assertGreater(checked, 40)

    def test_every_whole_scenario_in_a_document_is_valid(self):
        checked = 0
        for document in DOCUMENTS:
            if document.name in NO_SCENARIOS:
                continue
            for text in blocks(document, "yaml"):
                if not text.startswith("schema: 1"):
                    continue
                with self.subTest(f"{document.name}: {text[:60]}"):
                    self.write("shown.yaml", text)
                    for trace in re.findall(r"trace: (\S+\.csv)$", text, re.MULTILINE):
                        self.write(trace, BURSTGPT)  # which the reader has
                    self.assertIn("shown.yaml: ok", self.expect(0, "validate", "shown.yaml").out)
                    checked += 1
        self.assertGreater(checked, 3)

    def test_shipped_names_in_commands_exist(self):
        names = self.expect(0, "list", "scenarios", "--names").out.split()
        for document in DOCUMENTS:
            for text in blocks(document, "sh"):
                for line in joined_lines(text):
                    for _, rest in PROGRAM.findall(line):
                        for word in re.findall(r"\bscenarios/([a-z0-9.-]+)\.yaml", rest):
                            self.assertIn(word, names, line)
                        for word in re.findall(r"^ ((?:smoke|peers|decode|prefill)[a-z0-9-]*)\b", rest):
                            self.assertIn(word, names, line)

    def test_links_between_documents_lead_somewhere(self):
        for document in [*DOCUMENTS, ROOT / "CHANGELOG.md"]:
            for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8")):
                self.assertTrue((document.parent / target).exists(), f"{document.name}: {target}")

    def test_every_page_says_first_who_it_is_for(self):
        for document in DOCUMENTS[1:]:
            lines = document.read_text(encoding="utf-8").splitlines()
            self.assertTrue(lines[0].startswith("# "), document)
            self.assertRegex(lines[2], r"^\*For .*\.\*$", document)

    def test_the_first_screen_is_what_the_first_command_prints(self):
        shown = next(text for text in blocks(ROOT / "README.md", "")
                     if text.startswith("case "))  # fmt: skip
        out = self.expect(0, "run", SCENARIOS / "quickstart.yaml", "--device", "cpu", "--samples", "1",
                          "--set", "timing.min_time_ms=1").out  # fmt: skip

        def cells(text):
            rows = [line.split() for line in text.splitlines() if "_ATTN" in line]
            return [row[:4] for row in rows]  # case, backend, status, max_abs

        self.assertEqual(cells(out), cells(shown))
        self.assertRegex(out, r"\n9 passed in (\d+m)?\d+s\n")
        for name in shown.splitlines()[0].split():
            self.assertIn(name, out.splitlines()[0] + " noise")

    def test_the_ways_of_the_readme_work_one_after_the_other(self):
        self.write("model/config.json", '{"model_type": "llama", "num_attention_heads": 4, '
                   '"num_key_value_heads": 2, "hidden_size": 256, "torch_dtype": "bfloat16"}')  # fmt: skip
        self.expect(0, "init", "--hf", "model/config.json")
        quick = ("--device", "cpu", "--samples", "3", "--set", "batch=q16", "--set",
                 "timing.min_time_ms=1")  # fmt: skip
        for name in ("before.json", "after.json"):
            self.expect(0, "run", "llama.yaml", *quick, "--json", name, "--history", "runs.jsonl")
        self.assertIn("mean change of time", self.expect(0, "diff", "before.json", "after.json").out)
        self.expect(0, "report", "before.json", "after.json", "-o", "report.html")
        self.assertIn("in 2 runs", self.expect(0, "history", "runs.jsonl").out)
        self.assertIn("FLASH_ATTN", self.expect(0, "support", "llama.yaml").out)
        explained = self.expect(0, "explain", "llama.yaml", "--set", "batch=q16").out
        problem = strict_json(explained[explained.index("{"): explained.index("\n}\n") + 2])
        self.assertEqual(problem["attention"]["head_size"], 64)


if __name__ == "__main__":
    unittest.main()
