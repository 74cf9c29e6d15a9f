"""attnbench report: the table, and the page as a real browser shows it."""

import copy
import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

from browser import Browser, find_browser
from timings import rates, retime, summary, timing_of
from tool import TIME_LIMIT_S, TINY, ToolTest, skip_without, strict_json

HOSTILE = "</script><script>window.hacked=1</script><!--<img src=x onerror=hacked=1>\u2028'\"&`${1}"
SHOWN = "[...document.querySelectorAll('tr.result')]"


def timing(median_us):
    samples = [median_us * (1 + 0.001 * ((7 * i) % 11 - 5)) for i in range(20)]
    return {
        **timing_of(samples), "l2": "cold", "total_us": median_us * 1.1,
        "steps": [{"name": "write_cache", "median_us": median_us * 0.1, "bytes": 1, "flops": 0},
                  {"name": "attend", "median_us": median_us, "bytes": 1, "flops": 1}],
    }  # fmt: skip


def throughput(median_us, flops, size):
    work = {
        "kv_gbps": 1.0, "tokens_per_s": 1e6 / median_us, "flops": flops, "bytes": size,
        "ceiling_tflops": 1.0, "ceiling_gbps": 100.0,
    }  # fmt: skip
    return rates(work, median_us)


def timed(entry, median_us):
    """Gives a result another time."""
    entry.update(timing=timing(median_us), throughput=rates(entry["throughput"], median_us))


def error(max_abs):
    return {
        "max_abs": max_abs, "mean_abs": max_abs / 10, "rms_rel": max_abs, "nmse": max_abs**2,
        "cosine": 0.999999, "err_ratio": max_abs * 1e3, "matched_pct": 100.0,
        "worst_index": [0, 0, 0], "worst_actual": 1.5, "worst_expected": 1.25,
        "nan_count": 0, "inf_count": 0, "checked_rows": 1, "total_rows": 1,
        "limit": "l", "rule": "r",
    }  # fmt: skip


def result(backend, seq_len, median_us, scenario="sweep", **fields):
    """A passed decode of one request; fields are swept keys like {"dcp.world_size": 2}."""
    case = ",".join([f"q1s{seq_len}", *(f"{key}={value}" for key, value in fields.items())])
    problem = {"batch": [{"count": 1, "query_len": 1, "seq_len": seq_len}],
               "attention": {"dtype": "bfloat16"}}  # fmt: skip
    for key, value in fields.items():
        section, name = key.split(".")
        problem.setdefault(section, {})[name] = value
    return {
        "id": f"{scenario}/{case}/{backend}", "scenario": scenario, "case": case,
        "backend": backend, "device": "cpu", "status": "passed", "reasons": [], "problem": problem,
        "error": error(1e-3 / median_us), "lse_error": None, "quantization_error": None,
        "timing": timing(median_us),
        "throughput": throughput(median_us, 4e3 * seq_len, 1e3 * seq_len),
        "kernels": [], "repro": f"attnbench run {scenario} --filter '{case}'",
    }  # fmt: skip


def failed(backend, seq_len, status, reason):
    return {**result(backend, seq_len, 1.0), "status": status, "reasons": [reason], "timing": None,
            "throughput": None}  # fmt: skip


def result_file(results):
    return {
        "schema_version": 1, "tool": {"name": "attnbench", "version": "1", "git": "abc"},
        "created": "2026-01-02T03:04:05Z", "command": ["attnbench", "run", "a b"],
        "environment": {"hostname": "h", "cpu": {"model": "CPU", "cores": 2, "features": "avx2"},
                        "device": None, "compiler": {"name": "g++", "version": "12"},
                        "fingerprint": "f"},
        "results": results,
    }  # fmt: skip


def sweep_results():
    """Six timed cases, of which the slowest is in the middle, and two that did not run."""
    return [
        *(result("FLASH_ATTN", n, time) for n, time in ((1024, 20.0), (2048, 900.0), (4096, 70.0))),
        *(result("TRITON_ATTN", n, time) for n, time in ((1024, 25.0), (2048, 45.0), (4096, 85.0))),
        failed("FLASH_ATTN", 8192, "incorrect", "max_abs 0.5 exceeds 0.01"),
        failed("TRITON_ATTN", 8192, "unsupported", "head_size not supported"),
    ]


def of_batch(backend, batch, segments, median_us, **changes):
    """A passed result of any batch; segments are (count, query_len, seq_len)."""
    entry = {**result(backend, 1, median_us, "batches"), **changes}
    entry.update(case=batch, id=f"batches/{batch}/{backend}")
    entry["problem"] = {"batch": [dict(zip(("count", "query_len", "seq_len"), segment))
                                  for segment in segments]}  # fmt: skip
    return entry


def batch_results():
    """Seven batches in an order that is neither alphabetical nor by size, two to three of a kind."""
    batches = {
        "q512": [(1, 512, 512)], "8q1s1k": [(8, 1, 1024)], "q64": [(1, 64, 64)],
        "64q1s1k": [(64, 1, 1024)], "4q1s512_q60": [(4, 1, 512), (1, 60, 60)],
        "512q1s1k": [(512, 1, 1024)], "q2k": [(1, 2048, 2048)],
    }  # fmt: skip
    return [of_batch(backend, batch, segments, 10.0 + 3 * i)
            for i, (batch, segments) in enumerate(batches.items())
            for backend in ("FLASH_ATTN", "TRITON_ATTN")]  # fmt: skip


def quantised(entry, dtype, cost, **saturated):
    """The result with a cache of that type, which costs so much."""
    heads = {"type": "decoder", "num_kv_heads": 8, "head_size": 128, "v_head_size": 128,
             "dtype": "bfloat16"}  # fmt: skip
    entry["problem"].update(attention=heads, kv_cache={"dtype": dtype, "int8_level": 0})
    if cost is not None:
        entry["quantization_error"] = {**error(cost), **saturated}
    return entry


def quantised_results():
    key = "kv_cache.dtype"
    return [
        quantised(result("FLASH_ATTN", 1024, 20.0, **{key: "auto"}), "auto", None),
        quantised(result("FLASH_ATTN", 1024, 15.0, **{key: "fp8"}), "fp8", 0.046),
        quantised(result("TRITON_ATTN", 1024, 16.0, **{key: "fp8"}), "fp8", 0.986,
                  saturated_key=0.97, saturated_value=0.5),
        quantised(result("TRITON_ATTN", 1024, 17.0, **{key: "fp8_per_token_head"}),
                  "fp8_per_token_head", 0.026),
    ]  # fmt: skip


def in_turns(entry, peers, rounds=5):
    """The result as its backend gives it in turns with others; the rounds drift by 1 % each way."""
    time = entry["timing"]
    median = time["median_us"]
    samples = [median * (0.99 + 0.005 * (i // 4)) for i in range(20)]
    if entry["backend"] != "FLASH_ATTN":
        samples.reverse()
    time.update(summary(samples), rounds=[4] * rounds, peers=peers)
    return entry


def peer_results():
    """A case that one of four lost by a crash, and one that a user's backend does not take."""
    plugin = "python:adapters.of_mine.for_attention:FastAttention"
    first, second = ["FLASH_ATTN", plugin], ["FLASH_ATTN", "TRITON_ATTN"]
    return [
        in_turns(result("FLASH_ATTN", 8192, 30.0), first),
        failed("TRITON_ATTN", 8192, "error", "the process ended"),
        in_turns(result(plugin, 8192, 20.0), first),
        failed("CUDNN", 8192, "unsupported", "cuDNN not found"),
        in_turns(result("FLASH_ATTN", 131072, 400.0), second),
        in_turns(result("TRITON_ATTN", 131072, 500.0), second),
        failed("CUDNN", 131072, "unsupported", "cuDNN not found"),
    ]


class Report(ToolTest):
    def save(self, name, results):
        return self.write(name, json.dumps(result_file(results)))

    def page(self, *arguments):
        """Text of the page that the tool writes."""
        self.expect(0, "report", *arguments, "-o", "page.html")
        return (self.dir / "page.html").read_text(encoding="utf-8")

    @staticmethod
    def data_of(page):
        return re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]

    def test_without_an_output_the_results_are_a_table(self):
        self.save("a.json", sweep_results())
        outcome = self.expect(0, "report", "a.json")
        self.assertIn("1 incorrect, 1 unsupported, 6 passed", outcome.out)
        self.assertIn("max_abs 0.5 exceeds 0.01", outcome.out)
        self.assertNotIn(
            "TRITON", self.expect(0, "report", "a.json", "--backend", "FLASH_ATTN").out
        )

    def test_the_table_shows_peers_side_by_side(self):
        self.save("a.json", peer_results())
        out = self.expect(0, "report", "a.json", COLUMNS="120").out
        self.assertRegex(out, r"\nq1s8192\n  time, ratio +30.00 us 1.50x +error +20.00 us 1.00x\n")
        self.assertRegex(out, r"\nq1s131072\n  time, ratio +400.0 us 1.00x +500.0 us 1.25x +-\n")

    def test_a_real_run_and_its_journal_make_a_page(self):
        self.write("tiny.yaml", TINY)
        self.expect(0, "run", "tiny.yaml", "--json", "real.json")
        real = json.loads((self.dir / "real.json").read_text())
        data = strict_json(self.data_of(self.page("real.json")))
        self.assertEqual([r["id"] for r in data["results"]], [r["id"] for r in real["results"]])
        for shown, stored in zip(data["results"], real["results"]):
            self.assertAlmostEqual(
                shown["timing"]["median_us"] / stored["timing"]["median_us"], 1, 4
            )
            self.assertGreater(stored["throughput"]["ceiling_gbps"], 0)
            self.assertGreater(stored["throughput"]["ceiling_tflops"], 0)
            share = 100 * max(
                stored["throughput"]["gbps"] / stored["throughput"]["ceiling_gbps"],
                stored["throughput"]["tflops"] / stored["throughput"]["ceiling_tflops"],
            )
            self.assertAlmostEqual(stored["throughput"]["roofline_pct"] / share, 1)
        head = {key: value for key, value in real.items() if key != "results"}
        lines = [
            json.dumps({**head, "journal": True}),
            json.dumps(real["results"][0]),
            '{"id": "cut',
        ]
        self.write("run.journal", "\n".join(lines))
        data = strict_json(self.data_of(self.page("run.journal")))
        self.assertTrue(data["files"][0]["unfinished"])
        self.assertEqual(len(data["results"]), 1)

    def test_the_page_asks_nothing_of_the_network(self):
        self.save("a.json", sweep_results())
        page = self.page("a.json")
        self.assertIn("default-src 'none'", page)
        self.assertNotRegex(
            page, r"(?i)<(script|img|iframe|object|embed)[^>]*\ssrc=|<link\b|@import"
        )
        self.assertIn("Redistribution and use in source and binary forms", page)

    def test_the_policy_of_the_page_forbids_what_default_src_does_not_cover(self):
        self.save("a.json", sweep_results())
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', self.page("a.json"))[1]
        directives = dict(part.split(maxsplit=1) for part in policy.split("; "))
        for name in ("default-src", "base-uri", "form-action"):
            self.assertEqual(directives[name], "'none'", name)

    def test_without_a_browser_a_ci_fails_and_others_skip(self):
        for ci, code, words in (("true", 1, "there is no browser"), ("", 0, "skipped=")):
            done = subprocess.run(
                [sys.executable, "-B", Path(__file__).resolve(), "Page"],
                env={**self.environment(), "CI": ci, "PATH": str(self.dir)},
                capture_output=True, text=True, timeout=TIME_LIMIT_S,
            )  # fmt: skip
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(words, done.stderr)

    def test_hostile_names_cannot_leave_the_data(self):
        results = sweep_results()
        results[0].update(case=HOSTILE, id=f"sweep/{HOSTILE}/FLASH_ATTN", reasons=[HOSTILE])
        self.save("a.json", results)
        page = self.page("a.json")
        data = self.data_of(page)
        for forbidden in ("<", ">", "\u2028"):
            self.assertNotIn(forbidden, data)
        self.assertEqual(strict_json(data)["results"][0]["case"], HOSTILE)
        self.assertEqual(page.count("window.hacked"), data.count("window.hacked"))

    def test_samples_are_thinned_and_counted(self):
        results = sweep_results()
        retime(results[0], [20 + 0.001 * i for i in range(9000)])
        self.save("a.json", results)
        timing = strict_json(self.data_of(self.page("a.json")))["results"][0]["timing"]
        self.assertEqual(timing["num_samples"], 9000)
        self.assertEqual(len(timing["samples_us"]), 500)
        self.assertEqual(timing["samples_us"][0], 20)
        self.assertGreater(timing["samples_us"][-1], 28.9)

    def test_3_when_everything_was_filtered_out(self):
        self.save("r.json", sweep_results())
        self.save("none.json", [])
        for output in ([], ["-o", "page.html"]):
            self.expect(3, "report", "r.json", "--filter", "nothing-like-it", *output)
            self.expect(0, "report", "none.json", *output)

    def test_2_for_files_that_cannot_be_read_or_written(self):
        self.save("a.json", sweep_results())
        for arguments in (("none.json", "-o", "p.html"), ("a.json", "-o", "none/p.html"), ()):
            self.expect(2, "report", *arguments)
        self.assertEqual(self.files(), ["a.json"])


class Page(ToolTest):
    @classmethod
    def setUpClass(cls):
        path = find_browser() or skip_without("browser, e.g. chromium-headless-shell")
        cls.browser = Browser(path, TIME_LIMIT_S)
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        super().setUp()
        self.browser.resize(1280, 900)
        self.addCleanup(lambda: self.assertEqual(self.browser.complaints, []))

    def open(self, *files):
        names = []
        for i, results in enumerate(files):
            names.append(self.write(f"{i}.json", json.dumps(result_file(results))))
        self.expect(0, "report", *names, "-o", "page.html")
        self.browser.open(self.dir / "page.html")
        self.assertEqual(self.browser.complaints, [])

    def js(self, expression):
        return self.browser.run(expression)

    def text(self, selector):
        return self.js(f"document.querySelector({json.dumps(selector)}).textContent")

    def click(self, selector):
        self.js(f"document.querySelector({json.dumps(selector)}).click()")

    def shown(self, column):
        return self.js(f"{SHOWN}.map(r => r.querySelector('[data-label={column}]').textContent)")

    def points(self, view):
        return self.js(f"document.querySelectorAll('#{view} .view > svg path.point').length")

    def test_every_view_is_drawn_or_says_what_is_missing(self):
        cascade = [result("FLASH_ATTN", 4096, 100.0 if mode == "never" else 3000.0 / prefix,
                          "cascade", **{"cascade.common_prefix_len": prefix, "cascade.mode": mode})
                   for prefix in (16, 64, 256) for mode in ("never", "always")]  # fmt: skip
        dcp = [result("FLASH_ATTN", 4096, 50.0 + 10 * ranks, "dcp", **{"dcp.world_size": ranks})
               for ranks in (1, 2, 4)]  # fmt: skip
        self.open([*sweep_results(), *cascade, *dcp])
        self.assertEqual(self.points("roofline"), 15)
        self.assertIn("100 GB/s", self.text("#roofline-view"))
        self.assertIn("1.00 TFLOP/s", self.text("#roofline-view"))
        self.assertEqual(self.points("accuracy"), 15, "of those that have a speed")
        lines = self.js(
            "[...document.querySelectorAll('#sweep path.line')].map("
            "line => line.getAttribute('d').split('L').length)"
        )
        self.assertEqual(lines[:2], [3, 3], "a line for each backend through its three lengths")
        self.assertIn("64 tokens", self.text("#cascade-view"))
        self.assertIn("1.17×", self.text("#dcp-view"), "the time of two ranks over that of one")
        self.assertEqual(self.js("document.querySelectorAll('#steps .bars li').length"), 15)
        self.assertGreater(
            self.js("document.querySelectorAll('#samples circle.sample').length"), 19
        )
        self.assertIn("'a b'", self.text("#environment .command code"))
        self.open([{**r, "timing": None, "throughput": None} for r in sweep_results()])
        self.assertIn("no times", self.text("#accuracy .absent"))
        self.open([])
        self.assertIn("No result", self.text("#overview .absent"))

    def sections(self):
        return self.js("[...document.querySelectorAll('main > section')].map(s => s.id)")

    def test_sections_stand_only_where_there_is_something_in_them(self):
        self.open([{**r, "timing": None, "throughput": None} for r in sweep_results()])
        self.assertEqual(self.sections(), ["overview", "sweep", "accuracy", "environment"])
        links = self.js("[...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))")
        self.assertEqual(links, self.sections())
        self.open(sweep_results())
        self.assertFalse({"cascade", "dcp", "quantization", "compare"} & set(self.sections()))
        self.assertTrue({"peers", "roofline", "samples", "steps"} <= set(self.sections()))
        self.open([])
        self.assertEqual(self.sections(), ["overview", "environment"])
        self.open(quantised_results())
        self.click("[data-value=FLASH_ATTN]")
        self.js("document.getElementById('search').value = 'auto'")
        self.js("document.getElementById('search').dispatchEvent(new Event('input'))")
        self.browser.wait_for("document.querySelectorAll('tr.result').length === 1")
        self.assertIn("Nothing is quantised", self.text("#quantization .absent"))

    def test_what_quantising_costs_stands_in_the_table_and_in_a_plot_against_bytes(self):
        self.open(quantised_results())
        self.click("[data-column=time]")
        self.assertEqual(self.shown("quant"), ["4.6%", "98.6%!", "2.6%", "–"])
        places = self.js(
            """[...document.querySelectorAll('#quantization .view > svg path.point')].map(p => {
          const d = d3.select(p).datum(); return [d.x, d.y]})"""
        )
        # K and V of 8 heads of 128; a scale of 4 bytes a head beside each of the two.
        self.assertEqual(sorted(places), [[2048, 0.046], [2048, 0.986], [2112, 0.026]])
        self.assertIn("97.0% of the keys, 50.0% of the values", self.text("#quantization .warning"))
        self.assertIn("TRITON_ATTN", self.text("#quantization .warning"))
        costs = self.js("""[...document.querySelectorAll('.costs tbody tr')].map(
          row => [...row.cells].slice(2).map(cell => cell.textContent))""")
        self.assertEqual(costs[0], ["98.6%!", "2048", "97.0% of the keys, 50.0% of the values"])
        self.click(".costs button")
        self.assertIn("Clipped by scales", self.text("tr.detail"))
        self.assertIn("quant!", self.text("#overview-view"))
        clean = [r for r in quantised_results() if r["backend"] == "FLASH_ATTN"]
        self.open(clean)
        self.assertEqual(self.js("document.querySelectorAll('.warning').length"), 0)

    def test_doubtful_times_are_marked_where_they_stand(self):
        results = sweep_results()
        results[0]["timing"].update(waits_us=[12.0] * 20, cpu_wait=0.6)
        clocks = {"sm_mhz_min": 1, "sm_mhz_median": 1, "sm_mhz_max": 1}
        results[2]["timing"]["clocks"] = {**clocks, "throttling": ["sw_power_cap"]}
        self.open(results)
        self.click("[data-column=time]")
        times = self.shown("time")
        self.assertEqual([times[0], times[1], times[3]], ["20.00 µs*", "25.00 µs", "70.00 µs^"])
        self.assertIn("throttled", self.text("#overview-view"))

    def search(self):
        return self.js("location.search")

    def test_the_address_keeps_the_filters(self):
        self.open(sweep_results(), sweep_results())
        self.assertEqual(self.search(), "")
        self.click("[data-value=TRITON_ATTN]")
        self.click("[data-value=passed]")
        self.js("document.getElementById('search').value = 's4096'")
        self.js("document.getElementById('search').dispatchEvent(new Event('input'))")
        self.browser.wait_for("document.querySelectorAll('tr.result').length === 1")
        self.assertEqual(self.search(), "?search=s4096&status=passed&backend=TRITON_ATTN")
        self.browser.open(self.js("location.pathname + location.search"))
        self.assertEqual(self.shown("case"), ["sweep/q1s4096"])
        self.assertEqual(self.js("document.getElementById('search').value"), "s4096")
        self.assertEqual(
            self.js("document.querySelector('[data-value=TRITON_ATTN]').ariaPressed"), "true"
        )
        self.click("#filters .line > button")
        self.assertEqual((self.search(), len(self.shown("case"))), ("", 8))

    def test_an_address_that_asks_for_what_is_not_there_shows_everything(self):
        self.open(sweep_results())
        asked = "?status=fine&backend=NONE&scenario=other&file=7"
        self.browser.open(f"{self.dir / 'page.html'}{asked}")
        self.assertEqual(self.text("#count"), "8 results")

    def choose(self, view, label, value):
        self.js(f"""(() => {{
          const select = [...document.querySelectorAll('#{view} .chooser')]
            .find(c => c.textContent.startsWith('{label}')).querySelector('select');
          select.value = '{value}'; select.dispatchEvent(new Event('change')); }})()""")

    def ticks(self, axis):
        """Texts of the ticks of the sweep's first panel."""
        return self.js(f"""[...[...document.querySelectorAll('#sweep figure svg g.axis')][{axis}]
          .querySelectorAll('.tick text')].map(t => t.textContent)""")

    def test_every_batch_is_labelled_by_kind_and_size(self):
        for width in (1280, 390):
            self.browser.resize(width, 900, mobile=width < 600)
            self.open(batch_results())
            self.choose("sweep", "against", "batch")
            self.assertEqual(
                self.ticks(0),
                ["8q1s1k", "64q1s1k", "512q1s1k", "q64", "q512", "q2k", "4q1s512_q60"],
            )
            least = self.js("""Math.min(...[...document.querySelectorAll(
              '#sweep figure svg g.axis .tick text')].map(t => t.getBoundingClientRect().left))""")
            self.assertGreaterEqual(least, 0, "nothing is cut off")
            self.assertLessEqual(self.js("document.documentElement.scrollWidth"), width)

    def test_decodes_and_prefills_are_not_joined(self):
        self.open(batch_results())
        self.choose("sweep", "against", "num_actual_tokens")
        lines = self.js("""[...document.querySelectorAll('#sweep path.line')].map(
          line => line.getAttribute('d').split('L').length).filter(n => n > 1)""")
        self.assertEqual(sorted(lines), [3, 3, 3, 3], "three decodes and three prefills of each")

    def test_panels_of_a_scenario_have_equal_scales(self):
        results = [result("FLASH_ATTN", n, time * size, **{"kv_cache.block_size": size})
                   for size in (16, 64) for n, time in ((1024, 1.0), (2048, 2.0), (4096, 5.0))]  # fmt: skip
        results.pop()  # the last panel has fewer places
        self.open(results)
        self.choose("sweep", "Show", "time")
        self.choose("sweep", "against", "max_seq_len")
        scales = self.js("""[...document.querySelectorAll('#sweep figure')].map(figure =>
          [...figure.querySelectorAll('g.axis')].map(axis =>
            [...axis.querySelectorAll('.tick text')].map(t => t.textContent)))""")
        self.assertEqual(len(scales), 2)
        self.assertEqual(scales[0], scales[1])

    def test_a_rate_line_lies_under_its_ceiling_and_at_its_numbers(self):
        self.open(sweep_results())
        places = self.js(
            """[...document.querySelectorAll('#roofline .view > svg path.point')].map(p => {
          const d = d3.select(p).datum(); return [d.x, d.y, d.result.id]})"""
        )
        by_id = {r["id"]: r["throughput"] for r in sweep_results() if r["throughput"]}
        self.assertEqual(len(places), len(by_id))
        for intensity, flops, name in places:
            self.assertAlmostEqual(intensity, by_id[name]["flops"] / by_id[name]["bytes"])
            self.assertAlmostEqual(flops / (by_id[name]["tflops"] * 1e12), 1, 4)

    def test_the_table_sorts_by_numbers_with_missing_ones_last(self):
        self.open(sweep_results())
        self.assertEqual(self.shown("status")[0], "incorrect", "the worst stands first")
        self.click("[data-column=time]")
        times = ["20.00 µs", "25.00 µs", "45.00 µs", "70.00 µs", "85.00 µs", "900.0 µs", "–", "–"]
        self.assertEqual(self.shown("time"), times)
        self.assertEqual(
            self.js("document.querySelector('th[aria-sort=ascending]').textContent"), "time▲"
        )
        self.click("[data-column=time]")
        self.assertEqual(self.shown("time"), times[5::-1] + times[6:])
        self.click("[data-column=case]")
        self.assertEqual(self.shown("case")[0], "sweep/q1s1024", "q1s1024 stands before q1s8192")
        self.assertEqual(self.js("document.activeElement.dataset.column"), "case")

    def peers(self):
        """What the cells of the view hold, row by row."""
        return self.js("""[...document.querySelectorAll('.peers tbody tr')].map(row =>
          [...row.cells].map(cell => [...cell.querySelectorAll(':scope > :not(wbr, .peer-name)')]
            .map(part => part.textContent).join('|') || cell.textContent))""")

    def test_backends_stand_side_by_side_with_the_ratio_to_the_best(self):
        self.open(peer_results())
        self.assertIn("in turns in one process, 5 rounds", self.text("#peers-view .hint"))
        columns = self.js("[...document.querySelectorAll('.peers thead th')].map(c => c.textContent)")
        self.assertEqual(columns, ["case", "FLASH_ATTN", "TRITON_ATTN", "python:adapters.of_mine.for_attention:FastAttention"])
        rows = self.peers()
        self.assertEqual(rows[0][1:], [
            "1.50× (1.47–1.53)|30.00 µs|273 GB/s|err_ratio 0.03",
            "error|the process ended",
            "1.00×|20.00 µs|410 GB/s|err_ratio 0.05",
        ])  # fmt: skip
        self.assertEqual([cell.split("|")[0] for cell in rows[1][1:]],
                         ["1.00×", "1.25× (1.23–1.28)", "–"])  # fmt: skip
        best = self.js("[...document.querySelectorAll('.peers .best')].map(c => c.cellIndex)")
        self.assertEqual(best, [3, 1])
        self.assertIn("CUDNN: unsupported: cuDNN not found", self.text("#peers-view details"))
        self.click(".peers .best .ratio")
        self.assertIn("Fast", self.js("document.activeElement.closest('tr').textContent"))
        self.assertIn("20 in 5 rounds", self.text("tr.detail"))
        self.click("[data-value=FLASH_ATTN]")
        self.assertEqual(self.peers()[0][1].split("|")[0], "1.50× (1.47–1.53)",
                         "the best one stays the best of all")  # fmt: skip

    def test_backends_that_took_no_turns_are_said_to_have_taken_none(self):
        self.open(peer_results() + sweep_results()[:6])
        self.assertIn("3 cases marked with * had", self.text("#peers-view"))
        marked = [row[0].endswith(" *") for row in self.peers()]
        self.assertEqual(marked, [False, False, True, True, True])
        self.open(sweep_results())
        self.assertIn("in one go, one after another", self.text("#peers-view"))
        self.assertNotIn("*", self.text(".peers tbody"))

    def test_side_by_side_is_read_on_a_phone_without_scrolling_to_the_side(self):
        self.browser.resize(390, 844, mobile=True)
        self.open(peer_results())
        self.assertLessEqual(self.js("document.documentElement.scrollWidth"), 390)
        self.assertLessEqual(self.js("document.querySelector('.peers').scrollWidth"), 390)
        cut = self.js("""[...document.querySelectorAll('.peers td *')].filter(part =>
          part.getBoundingClientRect().right > 390).length""")
        self.assertEqual(cut, 0)
        # Names that no line can be broken in, of backends without a time.
        never = failed("python:a_package.with_long_names.adapters:AttentionWithoutSpaces", 8192,
                       "unsupported", "head_size not supported")  # fmt: skip
        self.open([*peer_results(), never])
        self.assertIn("AttentionWithoutSpaces", self.text("#peers-view summary"))
        self.assertLessEqual(self.js("document.documentElement.scrollWidth"), 390)
        self.assertEqual(self.js("""getComputedStyle(
          document.querySelector('.peers .peer-name')).display"""), "block")

    def test_filters_select_for_every_view(self):
        self.open(sweep_results())
        self.click("[data-value=TRITON_ATTN]")
        self.assertEqual(set(self.shown("backend")), {"TRITON_ATTN"})
        self.assertEqual((self.points("roofline"), self.text("#count")), (3, "4 of 8 results"))
        self.click("[data-value=passed]")
        self.assertEqual(set(self.shown("status")), {"passed"})
        self.assertEqual(self.text("[data-value=unsupported] .count"), "1", "of the chosen backend")
        self.js("document.getElementById('search').value = 'SWEEP s4096'")
        self.js("document.getElementById('search').dispatchEvent(new Event('input'))")
        self.browser.wait_for("document.querySelectorAll('tr.result').length === 1")
        self.assertEqual(self.shown("case"), ["sweep/q1s4096"])
        self.click("#filters .line > button")
        self.assertEqual((len(self.shown("case")), self.text("#count")), (8, "8 results"))

    def test_a_row_opens_to_its_details_with_a_command_to_copy(self):
        self.open(sweep_results())
        self.click("tr.result .toggle")
        self.assertIn("max_abs 0.5 exceeds 0.01", self.text("tr.detail"))
        self.assertEqual(self.text("tr.detail code"), sweep_results()[6]["repro"])
        self.click("tr.detail .copy")
        self.browser.wait_for("document.querySelector('.copy').textContent !== 'Copy'")
        self.assertEqual(self.text("tr.detail .copy"), "Copied")
        self.click("tr.result .toggle")
        self.assertEqual(self.js("document.querySelectorAll('tr.detail').length"), 0)

    def test_the_comparison_shows_the_verdicts_of_the_gate(self):
        after = copy.deepcopy(sweep_results())
        timed(after[0], 60.0)
        timed(after[1], 400.0)
        after[2].update(status="incorrect", timing=None, throughput=None)
        self.open(sweep_results(), after)
        verdicts = self.js("""[...document.querySelectorAll('#compare tbody tr')].map(
          row => [row.cells[0].textContent, row.cells[1].textContent, row.cells[5].textContent])""")
        self.assertEqual(verdicts[:2], [["BROKEN", "sweep/q1s4096", "–"],
                                        ["SLOWER", "sweep/q1s1024", "+200%"]])  # fmt: skip
        self.assertIn(["FASTER", "sweep/q1s2048", "−56%"], verdicts)
        self.click("[data-verdict=SLOWER]")
        self.assertEqual(self.js("document.querySelectorAll('#compare tbody tr').length"), 1)
        self.assertEqual(self.points("compare"), 1)
        self.assertIn("past the threshold", self.text("#compare tbody"))

    def test_the_browser_obeys_the_policy(self):
        self.open(sweep_results())
        self.js("""(() => {
          const base = document.createElement('base'); base.href = 'https://other.example/';
          document.head.append(base);
          const form = document.createElement('form'); form.action = 'https://other.example/';
          document.body.append(form); form.submit(); })()""")
        self.assertTrue(self.js("document.baseURI.startsWith('file:')"))
        self.browser.wait_for_complaints(2)
        complaints = " ".join(self.browser.complaints)
        self.browser.complaints.clear()
        self.assertIn("base-uri 'none'", complaints)
        self.assertIn("form-action 'none'", complaints)
        self.assertNotIn("asked the network", complaints)

    def test_a_comparison_of_two_machines_says_so(self):
        other = result_file(sweep_results())
        other["environment"]["cpu"]["model"] = "Another CPU"
        self.write("other.json", json.dumps(other))
        self.write("one.json", json.dumps(result_file(sweep_results())))
        self.expect(0, "report", "one.json", "other.json", "-o", "page.html")
        self.browser.open(self.dir / "page.html")
        self.assertIn("Another CPU", self.text("#compare .absent"))

    def test_the_keyboard_reaches_everything(self):
        self.open(sweep_results())
        reached = set()
        for _ in range(80):
            self.browser.press("Tab")
            name = self.js(
                """(e => { if (e.tabbed) return null; e.tabbed = true;
              return e.id || e.dataset.column || e.dataset.value ||
                     e.closest('main > section')?.id + ' ' + e.tagName })(document.activeElement)"""
            )
            if name is None:
                break
            reached.add(name)
        for wanted in ("search", "passed", "FLASH_ATTN", "time", "overview BUTTON", "roofline svg",
                       "sweep SELECT", "sweep svg", "accuracy svg", "samples SELECT",
                       "environment BUTTON"):  # fmt: skip
            self.assertIn(wanted, reached)
        self.js("document.querySelector('#roofline .view > svg').focus()")
        self.browser.press("ArrowRight")
        first = self.text("#tip strong")
        self.browser.press("ArrowRight")
        self.assertNotEqual([first, self.text("#tip dd")], [self.text("#tip strong"), ""])
        self.assertIn("FLOP/s", self.text("#live"), "a screen reader hears what the tooltip says")
        self.browser.press("Enter")
        self.assertEqual(self.js("document.activeElement.getAttribute('aria-expanded')"), "true")

    def test_hostile_names_are_shown_as_they_are(self):
        results = sweep_results()
        for entry in results:
            entry.update(case=HOSTILE + entry["case"], backend=entry["backend"] + HOSTILE,
                         scenario=HOSTILE, reasons=[HOSTILE], repro=HOSTILE)  # fmt: skip
            entry["id"] = "/".join(entry[part] for part in ("scenario", "case", "backend"))
        self.open(results, results)
        self.click("tr.result .toggle")
        self.assertIn(HOSTILE, self.text("tr.detail .reasons"))
        self.assertIn(HOSTILE, self.text("#compare tbody"))
        self.assertEqual(self.text("tr.detail code"), HOSTILE)
        self.assertEqual(self.js("typeof window.hacked + document.querySelectorAll('img').length"),
                         "undefined0")  # fmt: skip

    def test_a_phone_scrolls_in_one_direction_and_the_dark_is_dark(self):
        self.browser.resize(390, 844, mobile=True)
        self.open(quantised_results())
        self.assertLessEqual(self.js("document.documentElement.scrollWidth"), 390)
        self.open(sweep_results(), sweep_results())
        self.click("tr.result .toggle")
        self.assertLessEqual(self.js("document.documentElement.scrollWidth"), 390)
        lightness = "d3.lab(getComputedStyle(document.body).backgroundColor).l"
        for scheme, is_dark in (("dark", True), ("light", False)):
            self.browser.call("Emulation.setEmulatedMedia",
                              features=[{"name": "prefers-color-scheme", "value": scheme}])  # fmt: skip
            self.assertEqual(self.js(lightness) < 50, is_dark)

    def test_nothing_is_cut_off_on_paper(self):
        long = [result(backend, 4096, 20.0 + i, "smoke-decode",
                       **{"triton.path": "3d", "kv_cache.block_size": 16 + i})
                for i in range(9) for backend in ("FLASH_ATTN_IX", "FLASHMLA_SPARSE")]  # fmt: skip
        after = copy.deepcopy(long)
        for entry in after:
            timed(entry, 900 * entry["timing"]["median_us"])
        self.browser.resize(718, 1000)  # A4 without its margins
        self.addCleanup(self.browser.call, "Emulation.setEmulatedMedia", media="")
        self.browser.call("Emulation.setEmulatedMedia", media="print")
        self.open(long, after)
        self.assertIn("past the threshold", self.text("#compare tbody"))
        cut = self.js("""[...document.querySelectorAll('.scroll, body')]
          .filter(e => e.scrollWidth > e.clientWidth + 1)
          .map(e => [e.querySelector('table')?.className, e.scrollWidth, e.clientWidth])""")
        self.assertEqual(cut, [])

    def test_five_thousand_results_are_shown(self):
        results = [result(backend, 128 * (i + 1), 10.0 + i % 97, f"s{i % 20}",
                          **{"kv_cache.block_size": size})
                   for i in range(500) for backend in ("A", "B", "C", "D", "E")
                   for size in (16, 32)]  # fmt: skip
        self.open(results)
        self.assertEqual(self.text("#count"), "5,000 results")
        self.assertEqual(self.points("roofline"), 5000)
        self.assertEqual(len(self.shown("case")), 50)
        size = (self.dir / "page.html").stat().st_size / 2**20
        drawn = self.js("document.documentElement.dataset.ready")
        print(
            f"\n5,000 results, a page of {size:.1f} MiB: drawn {drawn} ms after its start"
        )


if __name__ == "__main__":
    unittest.main()
