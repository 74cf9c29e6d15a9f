"""The views of the page of attnbench report, in a browser: what each draws of which results."""

import copy
import json
import unittest

from pages import PageTest
from result_files import (
    batch_results,
    failed,
    in_turns,
    of_batch,
    peer_results,
    quantised_results,
    result,
    result_file,
    sweep_results,
    timed,
)
from timings import rates, retime


def bounded_by(bound, entry):
    """Gives a result ceilings under which the one or the other bounds it."""
    work = entry["throughput"]
    work["ceiling_tflops"] = work["tflops"] * (100 if bound == "memory" else 1.25)
    work["ceiling_gbps"] = work["gbps"] * (1.25 if bound == "memory" else 100)
    entry["throughput"] = rates(work, entry["timing"]["median_us"])
    assert entry["throughput"]["bound"] == bound


class Views(PageTest):
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
        # Where backends stand side by side, too.
        both = [in_turns(entry, ["FLASH_ATTN", "TRITON_ATTN"]) for entry in quantised_results()[1:3]]
        self.open(both)
        self.assertEqual([cell.split("|")[5] for cell in self.peers()[0][1:]], ["quant 4.6%", "quant 98.6%!"])
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
        # Where several backends or files are compared, too.
        doubtful = peer_results()
        for entry in doubtful:
            if entry["backend"] == "FLASH_ATTN":
                entry["timing"].update(waits_us=[12.0] * 20, cpu_wait=0.6)
        self.open(doubtful, doubtful)
        self.assertEqual([cell.split("|")[1] for cell in self.peers()[0][1:]],
                         ["30.00 µs*", "the process ended", "20.00 µs"])  # fmt: skip
        self.assertIn("time*: other programs", self.text("#peers-view"))
        times = self.js("""[...document.querySelectorAll('.compare tbody tr')].map(row =>
          [row.cells[2], row.cells[3], row.cells[4]].map(cell => cell.textContent))""")
        self.assertIn(["FLASH_ATTN", "30.00 µs*", "30.00 µs*"], times)
        self.assertIn("time*: other programs", self.text("#compare"))

    def test_samples_are_counted_in_whole_numbers(self):
        few = result("FLASH_ATTN", 1024, 20.0)
        retime(few, [20.0, 21.0, 22.0])
        self.open([few])
        ticks = self.js("""[...document.querySelectorAll('#samples figure:last-child svg g.axis')][0]
          .textContent""")
        self.assertEqual(ticks, "012")

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

    def test_both_rates_are_numbers_of_their_own_whatever_bounds_a_result(self):
        results = [r for r in sweep_results() if r["throughput"]]
        self.assertEqual({r["throughput"]["bound"] for r in results}, {"memory"})
        for r in results[::2]:  # of one line some are bound by one, some by the other
            bounded_by("compute", r)
        self.open(results)
        numbers = {r["id"]: r["throughput"] for r in results}
        offered = self.js("[...document.querySelectorAll('#sweep .chooser option')].map(o => o.value)")
        self.assertIn("bytes", offered)
        self.assertIn("flops", offered)
        self.assertNotIn("rate", offered)
        for metric, name, member, factor, unit in (("bytes", "bytes/s", "gbps", 1e9, "B/s"),
                                                   ("flops", "FLOP/s", "tflops", 1e12, "FLOP/s")):  # fmt: skip
            self.choose("sweep", "Show", metric)
            self.assertEqual(set(self.js("""[...document.querySelectorAll('#sweep figure svg')].map(
              svg => svg.getAttribute('aria-label').split(' against ')[0])""")), {name})
            places = self.js("""[...document.querySelectorAll('#sweep figure path.point')].map(
              p => [d3.select(p).datum().result.id, d3.select(p).datum().y])""")
            self.assertEqual({place[0] for place in places}, set(numbers))
            for result_id, y in places:
                self.assertAlmostEqual(y / (numbers[result_id][member] * factor), 1, 4)
            shown = self.shown(name)
            self.assertEqual(len(shown), len(results))
            self.assertTrue(all(text.endswith(unit) for text in shown), shown)

    def test_a_sweep_of_decodes_begins_with_bytes_and_one_of_prefills_with_flops(self):
        for bound in ("memory", "compute"):
            for segment, first in (((8, 1, 1024), "bytes"), ((1, 1024, 1024), "flops")):
                results = [of_batch("FLASH_ATTN", f"{count}q{query}s{keys}", [(count, query, keys)], 20.0 * n)
                           for n in (1, 2, 4) for count, query, keys in [(segment[0] * n, *segment[1:])]]  # fmt: skip
                for r in results:
                    bounded_by(bound, r)
                self.open(results)
                self.assertEqual(self.js("document.querySelector('#sweep .chooser select').value"), first)

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
            "1.50× (1.47–1.53)|30.00 µs|273 GB/s|1.09 TFLOP/s|err_ratio 0.03",
            "error|the process ended",
            "1.00×|20.00 µs|410 GB/s|1.64 TFLOP/s|err_ratio 0.05",
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
        self.assertIn("3 cases marked with † had", self.text("#peers-view"))
        marked = [row[0].endswith(" †") for row in self.peers()]
        self.assertEqual(marked, [False, False, True, True, True])
        self.open(sweep_results())
        self.assertIn("in one go, one after another", self.text("#peers-view"))
        self.assertNotIn("†", self.text(".peers tbody"))

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

    def test_the_comparison_shows_what_scales_cost_where_something_is_quantised(self):
        cells = """[...document.querySelectorAll('.compare tbody tr')].map(
          row => row.querySelector('[data-label=quant]')?.textContent)"""
        after = copy.deepcopy(quantised_results())
        after[1]["quantization_error"] = dict(after[2]["quantization_error"])
        self.open(quantised_results(), after)
        self.assertEqual(sorted(self.js(cells)),
                         ["2.6% → 2.6%", "4.6% → 98.6%!", "98.6%! → 98.6%!", "– → –"])  # fmt: skip
        self.open(sweep_results(), sweep_results())
        self.assertEqual(set(self.js(cells)), {None})

    def test_a_comparison_of_two_machines_says_so(self):
        other = result_file(sweep_results())
        other["environment"]["cpu"]["model"] = "Another CPU"
        self.write("other.json", json.dumps(other))
        self.write("one.json", json.dumps(result_file(sweep_results())))
        self.expect(0, "report", "one.json", "other.json", "-o", "page.html")
        self.browser.open(self.dir / "page.html")
        self.assertIn("Another CPU", self.text("#compare .absent"))


if __name__ == "__main__":
    unittest.main()
